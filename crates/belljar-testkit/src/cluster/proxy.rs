//! A TCP proxy that can be slow, refuse connections, hang, or answer every HTTP request with an error.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What the proxy does with connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Waits this long before it forwards each piece of data.
    Slow(Duration),
    /// Answers each request with 503.
    Fail,
    /// Closes each connection at once.
    Refuse,
    /// Accepts connections and data, and answers nothing.
    Hang,
}

/// A running proxy; ends when dropped.
pub struct Proxy {
    pub address: SocketAddr,
    mode: watch::Sender<Mode>,
    task: JoinHandle<()>,
}

/// The body of an answer in mode [`Mode::Fail`], as S3 writes it.
const FAILURE: &str =
    "<Error><Code>SlowDown</Code><Message>Please reduce your request rate</Message></Error>";

impl Proxy {
    /// Listens on `own` and forwards to `target`.
    pub async fn start(own: Ipv4Addr, target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind((own, 0)).await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (mode, modes) = watch::channel(Mode::Pass);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, target, modes.clone()));
            }
        });
        Proxy { address, mode, task }
    }

    /// Applies to connections that exist, too.
    pub fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut client: TcpStream, target: SocketAddr, mut modes: watch::Receiver<Mode>) {
    let mode = *modes.borrow_and_update();
    match mode {
        Mode::Pass | Mode::Slow(_) => {}
        Mode::Refuse => return,
        Mode::Fail => return fail(client).await,
        Mode::Hang => {
            let mut ignored = [0; 4096];
            while *modes.borrow() == Mode::Hang {
                tokio::select! {
                    _ = modes.changed() => {}
                    read = client.read(&mut ignored) => if !matches!(read, Ok(1..)) { return },
                }
            }
            return;
        }
    }
    let Ok(server) = TcpStream::connect(target).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = forward(from_client, to_server, modes.clone()) => {}
        () = forward(from_server, to_client, modes.clone()) => {}
        () = breaks(modes) => {}
    }
}

/// Resolves when connections that exist have to be closed.
async fn breaks(mut modes: watch::Receiver<Mode>) {
    while matches!(*modes.borrow_and_update(), Mode::Pass | Mode::Slow(_)) {
        if modes.changed().await.is_err() {
            return;
        }
    }
}

async fn forward(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, modes: watch::Receiver<Mode>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let mode = *modes.borrow();
        if let Mode::Slow(delay) = mode {
            tokio::time::sleep(delay).await;
        }
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

async fn fail(mut client: TcpStream) {
    let mut head = Vec::new();
    let mut buffer = [0; 4096];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match client.read(&mut buffer).await {
            Ok(length @ 1..) => head.extend_from_slice(&buffer[..length]),
            _ => return,
        }
    }
    let answer = format!(
        "HTTP/1.1 503 Slow Down\r\ncontent-type: application/xml\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{FAILURE}",
        FAILURE.len()
    );
    let _ = client.write_all(answer.as_bytes()).await;
    let _ = client.shutdown().await;
    // Until the client has read the answer: closing earlier, with data unread, would reset the connection.
    while matches!(client.read(&mut buffer).await, Ok(1..)) {}
}
