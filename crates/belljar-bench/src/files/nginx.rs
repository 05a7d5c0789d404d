//! nginx as a peer, which serves the same file.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// The path of the file on that server.
pub(super) const PATH: &str = "/file";

/// How long it may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A running nginx; dropping it kills it.
#[derive(Debug)]
pub(super) struct Nginx {
    child: Child,
    pub(super) address: SocketAddr,
}

impl Nginx {
    /// Starts one process that serves `file` with `sendfile`; its own files are in `directory`.
    pub(super) fn serve(file: &Path, directory: &Path) -> Result<Nginx> {
        let files = directory.join("files");
        fs::create_dir_all(&files)?;
        fs::hard_link(file, files.join(&PATH[1..])).context("failed to link the file")?;
        let address = free_address()?;
        let path = directory.join("nginx.conf");
        fs::write(&path, configuration(directory, address))?;
        let child = Command::new("nginx")
            .args(["-e", "stderr", "-c"])
            .arg(&path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("nginx is not installed")?;
        let mut nginx = Nginx { child, address };
        let begun = Instant::now();
        while TcpStream::connect(address).is_err() {
            if nginx.child.try_wait()?.is_some() || begun.elapsed() > START_TIMEOUT {
                bail!("nginx does not start");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(nginx)
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Finds a free port. nginx needs a port number: it cannot choose one and report it.
fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr())?)
}

fn configuration(directory: &Path, address: SocketAddr) -> String {
    let directory = directory.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("    {kind}_temp_path {directory}/{kind};\n"))
        .concat();
    format!(
        "daemon off;\nmaster_process off;\npid {directory}/pid;\nerror_log stderr;\nevents {{}}\n\
         http {{\n{temporary}    access_log off;\n    sendfile on;\n    tcp_nopush on;\n    \
         keepalive_requests 1000000;\n    \
         server {{ listen {address}; root {directory}/files; }}\n}}\n"
    )
}
