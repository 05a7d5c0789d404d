//! Server-sent events.

use std::time::Duration;

use reqwest::Response;
use serde_json::Value;

use super::ClientError;
use super::content::next_chunk;

/// How long the server may send nothing: it sends at least a comment every 15 seconds.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(45);

/// The largest event: an image or a table, escaped.
const MAX_EVENT: usize = 256 << 20;

/// One event of a stream.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ServerEvent {
    pub(crate) name: String,
    /// The offset after this event, for a stream that continues here.
    pub(crate) position: Option<u64>,
    pub(crate) data: Value,
}

#[derive(Debug)]
pub(crate) struct Events {
    url: String,
    response: Response,
    text: EventText,
}

impl Events {
    pub(super) fn new(url: String, response: Response) -> Events {
        Events { url, response, text: EventText::default() }
    }

    /// The next event; `None` at the end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Option<ServerEvent>, ClientError> {
        loop {
            if let Some(event) = self.text.next() {
                return Ok(Some(event));
            }
            if self.text.bytes.len() > MAX_EVENT {
                let why = "one of its events is too large".to_owned();
                return Err(ClientError::NotBelljar { url: self.url.clone(), why });
            }
            match next_chunk(&mut self.response, &self.url, SILENCE_TIMEOUT).await? {
                None => return Ok(None),
                Some(bytes) => self.text.bytes.extend_from_slice(&bytes),
            }
        }
    }
}

/// Bytes that were read and not parsed yet.
#[derive(Debug, Default)]
struct EventText {
    bytes: Vec<u8>,
    /// No event ends before this position, so a large event is not searched from its beginning again.
    searched: usize,
}

impl EventText {
    /// The next complete event. Comments, which keep the connection open, are skipped.
    fn next(&mut self) -> Option<ServerEvent> {
        loop {
            let end = self.bytes[self.searched..].windows(2).position(|two| two == b"\n\n");
            let Some(end) = end else {
                // The last byte may be the first half of the separator.
                self.searched = self.bytes.len().saturating_sub(1);
                return None;
            };
            let rest = self.bytes.split_off(self.searched + end + 2);
            let block = std::mem::replace(&mut self.bytes, rest);
            self.searched = 0;
            if let Some(event) = parse(&String::from_utf8_lossy(&block)) {
                return Some(event);
            }
        }
    }
}

fn parse(block: &str) -> Option<ServerEvent> {
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
    Some(ServerEvent { name: name.to_owned(), position, data })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn events_are_found_however_they_are_cut() {
        let stream = ":\n\nevent: exec\ndata: {\"exec_id\":\"e\"}\n\n:\n\n\
                      event: stdout\nid: 4\ndata: {\"text\":\"a\\n\\nb\"}\n\nid: 9\n\n";
        let event = |name: &str, position, data| ServerEvent { name: name.into(), position, data };
        let expected = [
            event("exec", None, json!({"exec_id": "e"})),
            event("stdout", Some(4), json!({"text": "a\n\nb"})),
        ];
        for size in 1..stream.len() {
            let mut text = EventText::default();
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
