//! An HTTP client for servers that may be away: it returns failures instead of panicking.

use std::net::SocketAddr;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoAnswer {
    /// No connection could be made, so the request was not sent.
    NotSent(String),
    /// The connection ended before the whole answer had come.
    Broken(String),
    TimedOut,
}

/// A whole answer.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: u16,
    pub retry_after: Option<String>,
    pub node: Option<String>,
    pub body: Bytes,
}

impl Reply {
    /// The body as JSON; null if it is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    /// The stable code of an error.
    pub fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// Sends one request on a new connection.
pub async fn call(
    address: SocketAddr,
    key: &str,
    (method, path): (Method, &str),
    body: impl Into<Bytes>,
    bound: Duration,
) -> Result<Reply, NoAnswer> {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, address.to_string())
        .header(header::AUTHORIZATION, format!("Bearer {key}"))
        .header(header::CONTENT_TYPE, "application/json")
        .body(Full::new(body.into()))
        .expect("a request");
    let answer = tokio::time::timeout(bound, exchange(address, request)).await;
    answer.unwrap_or(Err(NoAnswer::TimedOut))
}

async fn exchange(address: SocketAddr, request: Request<Full<Bytes>>) -> Result<Reply, NoAnswer> {
    let not_sent = |error: &dyn std::fmt::Display| NoAnswer::NotSent(error.to_string());
    let broken = |error: hyper::Error| NoAnswer::Broken(error.to_string());
    let stream = TcpStream::connect(address).await.map_err(|error| not_sent(&error))?;
    let _ = stream.set_nodelay(true);
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| not_sent(&error))?;
    let driver = tokio::spawn(connection);
    let answer = async {
        let (head, body) = sender.send_request(request).await.map_err(broken)?.into_parts();
        let body = body.collect().await.map_err(broken)?.to_bytes();
        let text = |name: &str| Some(head.headers.get(name)?.to_str().ok()?.to_owned());
        let (retry_after, node) = (text("retry-after"), text("belljar-node"));
        Ok(Reply { status: head.status.as_u16(), retry_after, node, body })
    };
    let answer = answer.await;
    driver.abort();
    answer
}
