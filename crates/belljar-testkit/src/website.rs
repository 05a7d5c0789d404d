//! A web server for sandboxes to reach, at 127.0.0.2: inside of a sandbox, 127.0.0.1 is the sandbox itself.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

pub struct Website {
    pub address: SocketAddr,
    heads: Arc<Mutex<Vec<String>>>,
}

impl Website {
    /// `/to/URL` redirects there, `/endless` never ends, `/hold` says one line and no more; all
    /// else is answered with the head of the request.
    pub async fn start() -> Website {
        let listener = TcpListener::bind("127.0.0.2:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let heads: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = Arc::clone(&heads);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, Arc::clone(&seen)));
            }
        });
        Website { address, heads }
    }

    /// The heads of all requests so far.
    pub fn heads(&self) -> Vec<String> {
        self.heads.lock().expect("not poisoned").clone()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

async fn answer(mut stream: TcpStream, seen: Arc<Mutex<Vec<String>>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => return,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    seen.lock().expect("not poisoned").push(head.clone());
    let path = head.split(' ').nth(1).expect("a request");
    if let Some(to) = path.strip_prefix("/to/") {
        let said = format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n");
        let _ = stream.write_all(said.as_bytes()).await;
        return;
    }
    if path == "/endless" {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        while stream.write_all(&[b'x'; 1 << 16]).await.is_ok() {}
        return;
    }
    if path == "/hold" {
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await;
        let _ = stream.write_all(b"5\r\nheld\n\r\n").await;
        let _ = stream.read_u8().await;
        return;
    }
    let said = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}", head.len());
    let _ = stream.write_all(said.as_bytes()).await;
}
