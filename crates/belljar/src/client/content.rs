//! The content of a large response, read as it arrives.

use std::time::Duration;

use bytes::Bytes;
use reqwest::Response;

use super::ClientError;

/// How long the server may send nothing. A server that reads from a slow disk makes short pauses.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(45);

#[derive(Debug)]
pub(crate) struct Content {
    url: String,
    /// The position of the first byte in the whole content.
    pub(crate) begins_at: u64,
    response: Response,
}

impl Content {
    pub(super) fn new(url: String, begins_at: u64, response: Response) -> Content {
        Content { url, begins_at, response }
    }

    /// The next bytes; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        next_chunk(&mut self.response, &self.url, SILENCE_TIMEOUT).await
    }
}

/// The next bytes of a response. Cancel-safe.
pub(super) async fn next_chunk(
    response: &mut Response,
    url: &str,
    timeout: Duration,
) -> Result<Option<Bytes>, ClientError> {
    match tokio::time::timeout(timeout, response.chunk()).await {
        Ok(chunk) => chunk.map_err(|error| ClientError::lost(url, &error)),
        Err(_) => Err(ClientError::Silent { url: url.to_owned(), seconds: timeout.as_secs() }),
    }
}
