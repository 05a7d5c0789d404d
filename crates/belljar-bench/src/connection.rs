//! A minimal HTTP/1.1 client that uses little processor time: requests are built beforehand, and
//! only the needed parts of a response are parsed.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// The largest response that is read.
const MAX_RESPONSE: usize = 16 << 20;

/// One connection, kept open between requests.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
}

#[derive(Debug)]
pub(crate) struct Response<'a> {
    pub(crate) status: u16,
    pub(crate) body: &'a [u8],
}

impl Response<'_> {
    pub(crate) fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }

    /// Whether an execution succeeded.
    pub(crate) fn is_ok(&self) -> bool {
        const OK: &[u8] = br#""status":"ok""#;
        self.status == 200 && self.body.windows(OK.len()).any(|part| part == OK)
    }

    /// The body, if the request succeeded.
    pub(crate) fn json(&self) -> Result<Value> {
        let text = String::from_utf8_lossy(self.body);
        ensure!(self.is_success(), "the server answered {}: {text}", self.status);
        serde_json::from_slice(self.body)
            .with_context(|| format!("the response is not JSON: {text}"))
    }
}

/// The bytes of a request.
pub(crate) fn request(method: &str, path: &str, body: &Value) -> Vec<u8> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

/// A request to execute code in a session.
pub(crate) fn exec(id: &str, code: &str) -> Vec<u8> {
    request("POST", &format!("/v1/sessions/{id}/exec"), &json!({ "code": code }))
}

/// A request to stop a session.
pub(crate) fn delete(id: &str) -> Vec<u8> {
    request("DELETE", &format!("/v1/sessions/{id}"), &Value::Null)
}

pub(crate) fn id_of(session: &Value) -> Result<String> {
    Ok(session["id"].as_str().context("a session without an id")?.to_owned())
}

impl Connection {
    pub(crate) async fn connect(address: SocketAddr) -> Result<Connection> {
        let context = || format!("failed to connect to {address}");
        let stream = TcpStream::connect(address).await.with_context(context)?;
        stream.set_nodelay(true).with_context(context)?;
        Ok(Connection { stream, buffer: Vec::with_capacity(16 << 10) })
    }

    pub(crate) async fn call(&mut self, request: &[u8]) -> Result<Response<'_>> {
        self.send(request).await?;
        self.response().await
    }

    /// Sends one part of a large request.
    pub(crate) async fn send(&mut self, part: &[u8]) -> Result<()> {
        self.stream.write_all(part).await.context("failed to send a request")
    }

    pub(crate) async fn response(&mut self) -> Result<Response<'_>> {
        let (status, head, length) = self.head().await?;
        while self.buffer.len() < head + length {
            self.more().await?;
            ensure!(self.buffer.len() <= MAX_RESPONSE, "the response is too large");
        }
        Ok(Response { status, body: &self.buffer[head..head + length] })
    }

    /// Sends a request and discards the body of the response. Returns the length of the body.
    pub(crate) async fn drain(&mut self, request: &[u8], scratch: &mut [u8]) -> Result<usize> {
        self.send(request).await?;
        let (status, head, length) = self.head().await?;
        ensure!((200..300).contains(&status), "the server answered {status}");
        let mut left = length - (self.buffer.len() - head);
        while left > 0 {
            let most = left.min(scratch.len());
            let read = self.stream.read(&mut scratch[..most]).await;
            let read = read.context("failed to read a response")?;
            ensure!(read > 0, "the server closed the connection");
            left -= read;
        }
        Ok(length)
    }

    /// Reads the head of a response. Returns its status, where its body begins in the buffer, and
    /// the length of the body.
    async fn head(&mut self) -> Result<(u16, usize, usize)> {
        self.buffer.clear();
        let (head, length) = loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break (end + 4, content_length(&self.buffer[..end])?);
            }
            self.more().await?;
        };
        let status = self.buffer.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok());
        let status =
            status.and_then(|digits| digits.parse().ok()).context("the response is not HTTP")?;
        Ok((status, head, length))
    }

    async fn more(&mut self) -> Result<()> {
        let read = self.stream.read_buf(&mut self.buffer).await;
        if read.context("failed to read a response")? == 0 {
            bail!("the server closed the connection");
        }
        Ok(())
    }
}

fn content_length(head: &[u8]) -> Result<usize> {
    const NAME: &[u8] = b"content-length: ";
    let at = head.windows(NAME.len()).position(|part| part.eq_ignore_ascii_case(NAME));
    let digits = at.map(|at| &head[at + NAME.len()..]).unwrap_or_default();
    let digits = digits.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let length = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    length.with_context(|| {
        format!("a response without a content-length: {}", String::from_utf8_lossy(head))
    })
}

/// Sends all requests over this many connections. Returns the responses in the order of the
/// requests.
pub(crate) async fn call_all(
    address: SocketAddr,
    requests: Vec<Vec<u8>>,
    connections: usize,
) -> Result<Vec<Result<Value>>> {
    let mut responses: Vec<Option<Result<Value>>> = requests.iter().map(|_| None).collect();
    let mut shares: Vec<Vec<(usize, Vec<u8>)>> = (0..connections).map(|_| Vec::new()).collect();
    for (index, request) in requests.into_iter().enumerate() {
        shares[index % connections].push((index, request));
    }
    let mut tasks = JoinSet::new();
    for share in shares {
        tasks.spawn(async move {
            let mut connection = Connection::connect(address).await?;
            let mut responses = Vec::with_capacity(share.len());
            for (index, request) in share {
                responses.push((index, connection.call(&request).await?.json()));
            }
            anyhow::Ok(responses)
        });
    }
    while let Some(share) = tasks.join_next().await {
        for (index, response) in share?? {
            responses[index] = Some(response);
        }
    }
    Ok(responses.into_iter().flatten().collect())
}
