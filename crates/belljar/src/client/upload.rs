//! Uploads of files, in pieces.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::TryStreamExt;
use futures_util::stream;
use reqwest::{Body, Method, RequestBuilder, header};
use serde_json::Value;
use tokio::sync::mpsc::Receiver;

use super::{Client, ClientError, RESPONSE_TIMEOUT};

/// How often the progress of an upload is reported.
const TICK: Duration = Duration::from_millis(100);

/// How long a server may take to report again why it refused an upload.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(5);

/// Content that another thread reads, as fast as the server takes it.
#[derive(Debug)]
pub(crate) struct Upload {
    pieces: Receiver<io::Result<Bytes>>,
    length: Option<u64>,
    /// Bytes that the connection has taken so far.
    sent: Arc<AtomicU64>,
}

impl Upload {
    /// If `length` is given, the content must have exactly that many bytes.
    pub(crate) fn new(pieces: Receiver<io::Result<Bytes>>, length: Option<u64>) -> Upload {
        Upload { pieces, length, sent: Arc::default() }
    }

    /// A counter of the bytes that the connection has taken.
    pub(crate) fn sent(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.sent)
    }

    fn into_body(self) -> Body {
        let Upload { mut pieces, sent, .. } = self;
        let pieces = stream::poll_fn(move |context| pieces.poll_recv(context));
        Body::wrap_stream(pieces.inspect_ok(move |piece| {
            sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }))
    }
}

impl Client {
    /// Sends content with `PUT`, and calls `progress` meanwhile. There is no time limit while the server accepts data.
    pub(crate) async fn put(
        &self,
        path: &str,
        upload: Upload,
        mut progress: impl FnMut(u64),
    ) -> Result<Value, ClientError> {
        let (length, sent) = (upload.length, upload.sent());
        let request = self.put_request(path, length)?.body(upload.into_body());
        let mut response = pin!(async { self.value(self.send(request).await?).await });
        let (mut before, mut moved) = (0, Instant::now());
        loop {
            match tokio::time::timeout(TICK, response.as_mut()).await {
                Ok(Err(error @ ClientError::Lost { .. })) => {
                    return Err(self.refusal(path, length).await.unwrap_or(error));
                }
                Ok(value) => return value,
                Err(_) => {}
            }
            let now = sent.load(Ordering::Relaxed);
            progress(now);
            if now != before {
                (before, moved) = (now, Instant::now());
            } else if moved.elapsed() >= RESPONSE_TIMEOUT {
                return Err(self.silent(RESPONSE_TIMEOUT));
            }
        }
    }

    fn put_request(&self, path: &str, length: Option<u64>) -> Result<RequestBuilder, ClientError> {
        let request = self.request(Method::PUT, path, "application/json")?;
        let request = request.header(header::CONTENT_TYPE, "application/octet-stream");
        Ok(match length {
            Some(length) => request.header(header::CONTENT_LENGTH, length),
            None => request,
        })
    }

    /// Finds out why an upload was refused whose connection was lost. A server that refuses an upload responds and
    /// closes the connection; data that we are sending at that moment can destroy its response. So this repeats the
    /// request without content: a server that refuses it responds, any other server waits for the content.
    async fn refusal(&self, path: &str, length: Option<u64>) -> Option<ClientError> {
        let nothing = Body::wrap_stream(stream::pending::<io::Result<Bytes>>());
        let request = self.put_request(path, length).ok()?.body(nothing);
        let response = async { self.value(self.send(request).await?).await };
        match tokio::time::timeout(REFUSAL_TIMEOUT, response).await {
            Ok(Err(error @ ClientError::Refused { .. })) => Some(error),
            _ => None,
        }
    }
}
