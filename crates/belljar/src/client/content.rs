//! The content of something large, as it comes.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Bytes, Incoming};

use super::{ClientError, Sender};

/// Content comes without pauses; a server that reads it from a slow disk makes short ones.
const SILENCE: Duration = Duration::from_secs(45);

#[derive(Debug)]
pub(crate) struct Content {
    url: String,
    /// Where in the whole the first byte belongs.
    pub(crate) begins_at: u64,
    body: Incoming,
    /// The connection lives as long as this.
    _sender: Sender,
}

impl Content {
    pub(super) fn new(url: String, begins_at: u64, body: Incoming, sender: Sender) -> Content {
        Content { url, begins_at, body, _sender: sender }
    }

    /// The next bytes; `None` at the end that the server had announced.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            let silent =
                || ClientError::Silent { url: self.url.clone(), seconds: SILENCE.as_secs() };
            let frame = tokio::time::timeout(SILENCE, self.body.frame());
            match frame.await.map_err(|_| silent())? {
                None => return Ok(None),
                Some(Err(cause)) => return Err(ClientError::Lost { url: self.url.clone(), cause }),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(Some(bytes));
                    }
                }
            }
        }
    }
}
