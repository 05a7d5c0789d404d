//! An HTTP server that datasets are fetched from.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Answers every request as its script says, one request per connection.
pub(super) struct Origin {
    pub(super) address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
    /// A held request continues when it gets a permit.
    gate: Arc<Semaphore>,
}

/// The response to a request.
pub(super) enum Reply {
    Now(String),
    /// Sent after [`Origin::release`].
    Held(String),
}

pub(super) fn ok(headers: &str, body: &str) -> Reply {
    Reply::Now(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n{headers}\r\n{body}", body.len()))
}

pub(super) fn status(line: &str, body: &str) -> Reply {
    Reply::Now(format!("HTTP/1.1 {line}\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
}

impl Origin {
    /// `script` gets the head of a request, in lower case except its first line.
    pub(super) async fn start(script: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Origin {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let origin = Origin {
            address: listener.local_addr().expect("an address"),
            heads: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
        };
        let (heads, gate) = (Arc::clone(&origin.heads), Arc::clone(&origin.gate));
        let script = Arc::new(script);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (heads, gate) = (Arc::clone(&heads), Arc::clone(&gate));
                let script = Arc::clone(&script);
                tokio::spawn(async move { serve(stream, &*script, &heads, &gate).await });
            }
        });
        origin
    }

    /// The heads of all requests so far.
    pub(super) fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("nobody panics with it").clone()
    }

    pub(super) fn asked(&self) -> usize {
        self.heads().len()
    }

    /// Lets one held request continue.
    pub(super) fn release(&self) {
        self.gate.add_permits(1);
    }
}

async fn serve(
    mut stream: TcpStream,
    script: &(dyn Fn(&str) -> Reply + Send + Sync),
    heads: &Mutex<Vec<String>>,
    gate: &Semaphore,
) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8(head).expect("text");
    heads.lock().expect("nobody panics with it").push(head.clone());
    let reply = match script(&head) {
        Reply::Now(reply) => reply,
        Reply::Held(reply) => {
            gate.acquire().await.expect("it is never closed").forget();
            reply
        }
    };
    let _ = stream.write_all(reply.as_bytes()).await;
    let _ = stream.shutdown().await;
}

/// The path of a request.
pub(super) fn path(head: &str) -> &str {
    head.split(' ').nth(1).expect("a request")
}

/// The value of a header of a request.
pub(super) fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| {
        let (found, value) = line.split_once(": ")?;
        found.eq_ignore_ascii_case(name).then_some(value)
    })
}
