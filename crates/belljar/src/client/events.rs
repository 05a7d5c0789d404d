//! Server-sent events, as they come.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::Value;

use super::{ClientError, Sender};

/// The server says something every 15 seconds, if only that it is there.
const SILENCE: Duration = Duration::from_secs(45);

/// The largest event: a picture or a table, escaped.
const MAX_EVENT: usize = 256 << 20;

/// One event.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Heard {
    pub(crate) name: String,
    /// Where to go on after it, if it says.
    pub(crate) position: Option<u64>,
    pub(crate) data: Value,
}

#[derive(Debug)]
pub(crate) struct Events {
    url: String,
    body: Incoming,
    text: Text,
    /// The connection lives as long as this.
    _sender: Sender,
}

impl Events {
    pub(super) fn new(url: String, body: Incoming, sender: Sender) -> Events {
        Events { url, body, text: Text::default(), _sender: sender }
    }

    /// The next event; `None` when there are no more. Nothing is lost by not waiting for it.
    pub(crate) async fn next(&mut self) -> Result<Option<Heard>, ClientError> {
        loop {
            if let Some(heard) = self.text.next() {
                return Ok(Some(heard));
            }
            if self.text.bytes.len() > MAX_EVENT {
                let why = "its events do not end".to_owned();
                return Err(ClientError::Stranger { url: self.url.clone(), why });
            }
            let silent =
                || ClientError::Silent { url: self.url.clone(), seconds: SILENCE.as_secs() };
            let frame = tokio::time::timeout(SILENCE, self.body.frame());
            match frame.await.map_err(|_| silent())? {
                None => return Ok(None),
                Some(Err(cause)) => return Err(ClientError::Lost { url: self.url.clone(), cause }),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        self.text.bytes.extend_from_slice(&bytes);
                    }
                }
            }
        }
    }
}

/// What has been read and not been understood yet.
#[derive(Debug, Default)]
struct Text {
    bytes: Vec<u8>,
    /// No event ends before this; a large one is not searched from its beginning every time.
    searched: usize,
}

impl Text {
    /// The next whole event. Comments, which keep the connection alive, are none.
    fn next(&mut self) -> Option<Heard> {
        loop {
            let end = self.bytes[self.searched..].windows(2).position(|two| two == b"\n\n");
            let Some(end) = end else {
                // The last byte may be half of an end.
                self.searched = self.bytes.len().saturating_sub(1);
                return None;
            };
            let rest = self.bytes.split_off(self.searched + end + 2);
            let block = std::mem::replace(&mut self.bytes, rest);
            self.searched = 0;
            if let Some(heard) = understand(&String::from_utf8_lossy(&block)) {
                return Some(heard);
            }
        }
    }
}

fn understand(block: &str) -> Option<Heard> {
    let (mut name, mut position, mut data) = ("message", None, Vec::new());
    for line in block.lines() {
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => name = value,
            "id" => position = value.parse().ok(),
            "data" => data.push(value),
            _ => {}
        }
    }
    if data.is_empty() {
        return None;
    }
    let data = serde_json::from_str(&data.join("\n")).ok()?;
    Some(Heard { name: name.to_owned(), position, data })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_found_however_they_are_cut() {
        let stream = ":\n\nevent: exec\ndata: {\"exec_id\":\"e\"}\n\n:\n\n\
                      event: stdout\nid: 4\ndata: {\"text\":\"a\\n\\nb\"}\n\nid: 9\n\n";
        let heard = |name: &str, position, data| Heard { name: name.into(), position, data };
        let expected = [
            heard("exec", None, json!({"exec_id": "e"})),
            heard("stdout", Some(4), json!({"text": "a\n\nb"})),
        ];
        for size in 1..stream.len() {
            let mut text = Text::default();
            let mut found = Vec::new();
            for piece in stream.as_bytes().chunks(size) {
                text.bytes.extend_from_slice(piece);
                found.extend(std::iter::from_fn(|| text.next()));
            }
            assert_eq!(found, expected, "in pieces of {size}");
            assert!(text.bytes.is_empty());
        }
    }
}
