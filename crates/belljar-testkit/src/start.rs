//! Starts servers in an [`Installation`].

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use crate::client::{Client, Target};
use crate::installation::Installation;
use crate::server::Server;
use crate::wait::PATIENCE;

impl Installation {
    /// Starts a server here and waits until it listens.
    pub async fn serve(self: &Arc<Self>) -> Server {
        self.serve_by(self.belljar(&["serve"])).await
    }

    /// The same with another command, which becomes the server.
    pub async fn serve_by(self: &Arc<Self>, command: Command) -> Server {
        match self.try_serve_by(command).await {
            Ok(server) => server,
            Err((status, said)) => panic!("the server did not start ({status}):\n{said}"),
        }
    }

    /// The output of a server that cannot start here.
    pub async fn refusal(self: &Arc<Self>) -> String {
        self.refusal_by(self.belljar(&["serve"])).await
    }

    pub async fn refusal_by(self: &Arc<Self>, command: Command) -> String {
        match self.try_serve_by(command).await {
            Ok(server) => panic!("the server did start:\n{}", server.said()),
            Err((status, said)) => {
                assert!(!status.success(), "{said}");
                said
            }
        }
    }

    async fn try_serve_by(
        self: &Arc<Self>,
        mut command: Command,
    ) -> Result<Server, (ExitStatus, String)> {
        command.args(&self.args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("belljar starts");
        let stderr = child.stderr.take().expect("it was piped");
        let said = Arc::new(Mutex::new(String::new()));
        let (address, announced) = tokio::sync::oneshot::channel();
        let heard = Arc::clone(&said);
        std::thread::spawn(move || listen_to(stderr, &heard, address));
        let mut server = Server {
            client: Client::new(Target::Nowhere),
            child: Some(child),
            said,
            installation: Arc::clone(self),
        };
        let waited = tokio::time::timeout(PATIENCE, announced).await;
        match waited.unwrap_or_else(|_| panic!("it says nothing:\n{}", server.said())) {
            Ok(url) => {
                server.client = Client::new(Target::parse(&url));
                Ok(server)
            }
            Err(_) => {
                let status = server.wait().await;
                Err((status, server.said()))
            }
        }
    }
}

/// Keeps what the server prints, and sends its address as soon as that is printed.
fn listen_to(stderr: impl Read, said: &Mutex<String>, tell: tokio::sync::oneshot::Sender<String>) {
    let mut tell = Some(tell);
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        {
            let mut said = said.lock().expect("not poisoned");
            said.push_str(&line);
            said.push('\n');
        }
        if let Some((_, url)) = line.split_once(" listens on ")
            && (url.starts_with("http") || url.starts_with("unix:"))
            && let Some(tell) = tell.take()
        {
            // In a JSON log, a quote follows the URL.
            let url = url.split('"').next().unwrap_or(url);
            let _ = tell.send(url.trim().to_owned());
        }
    }
}
