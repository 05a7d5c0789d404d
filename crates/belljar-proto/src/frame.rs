//! Frames: a small JSON head, which describes the message, and a raw body.
//!
//! ```text
//! u32 LE head length | u32 LE body length | head (JSON) | body (bytes)
//! ```
//!
//! Output, code and file contents travel in the body, so they are never escaped, copied into
//! strings or checked for UTF-8 on the way. A decoder never allocates for a frame it would refuse.

use serde::{Serialize, de::DeserializeOwned};

/// Heads are names, numbers and short texts; a larger one comes from a broken or hostile peer.
pub const MAX_HEAD: usize = 1024 * 1024;

/// The largest body either side accepts: one piece of code, one result, one chunk of a file.
pub const MAX_BODY: usize = 64 * 1024 * 1024;

const PREFIX: usize = 8;

/// One message on the wire: a head, still in JSON, and its body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub head: Vec<u8>,
    pub body: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("frame announces a head of {0} bytes, more than the {MAX_HEAD} allowed")]
    HeadTooLarge(usize),
    #[error("frame announces a body of {0} bytes, more than the {MAX_BODY} allowed")]
    BodyTooLarge(usize),
    #[error("failed to parse the head of a frame")]
    Head(#[source] serde_json::Error),
}

impl Frame {
    /// Reads the head as `T`.
    pub fn head<T: DeserializeOwned>(&self) -> Result<T, FrameError> {
        serde_json::from_slice(&self.head).map_err(FrameError::Head)
    }
}

/// Writes one frame into a fresh buffer, ready for a single `write`.
///
/// # Panics
///
/// If `head` cannot be expressed as JSON, or the frame exceeds its bounds. Both are errors of the calling
/// program: callers bound what they put into a frame.
#[must_use]
pub fn encode<T: Serialize>(head: &T, body: &[u8]) -> Vec<u8> {
    try_encode(head, body).expect("callers bound what they put into a frame")
}

/// Like [`encode`], for input that may be too large for a frame.
pub fn try_encode<T: Serialize>(head: &T, body: &[u8]) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; PREFIX];
    serde_json::to_writer(&mut bytes, head).expect("wire types serialize to JSON");
    let head_len = bytes.len() - PREFIX;
    if head_len > MAX_HEAD {
        return Err(FrameError::HeadTooLarge(head_len));
    }
    if body.len() > MAX_BODY {
        return Err(FrameError::BodyTooLarge(body.len()));
    }
    bytes[..4].copy_from_slice(&length(head_len));
    bytes[4..PREFIX].copy_from_slice(&length(body.len()));
    bytes.extend_from_slice(body);
    Ok(bytes)
}

fn length(len: usize) -> [u8; 4] {
    u32::try_from(len).expect("the bounds of a frame fit in 32 bits").to_le_bytes()
}

/// Collects bytes as they arrive and returns whole frames.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    /// Bytes before this index were returned already.
    taken: usize,
}

impl Decoder {
    pub fn push(&mut self, bytes: &[u8]) {
        // Compact only when everything was taken, or a large part of the buffer was, so that a stream of
        // small frames costs no copying.
        if self.taken == self.buffer.len() {
            self.buffer.clear();
            self.taken = 0;
        } else if self.taken > 64 * 1024 {
            self.buffer.drain(..self.taken);
            self.taken = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame, `None` until enough bytes have arrived.
    ///
    /// After an error the position of the next frame is unknown, and the stream must be closed.
    pub fn next_frame(&mut self) -> Result<Option<Frame>, FrameError> {
        let waiting = &self.buffer[self.taken..];
        let Some((prefix, rest)) = waiting.split_first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let [h0, h1, h2, h3, b0, b1, b2, b3] = *prefix;
        let head_len = u32::from_le_bytes([h0, h1, h2, h3]) as usize;
        let body_len = u32::from_le_bytes([b0, b1, b2, b3]) as usize;
        if head_len > MAX_HEAD {
            return Err(FrameError::HeadTooLarge(head_len));
        }
        if body_len > MAX_BODY {
            return Err(FrameError::BodyTooLarge(body_len));
        }
        if rest.len() < head_len + body_len {
            return Ok(None);
        }
        let (head, rest) = rest.split_at(head_len);
        let frame = Frame { head: head.to_vec(), body: rest[..body_len].to_vec() };
        self.taken += PREFIX + head_len + body_len;
        if self.buffer.capacity() > MAX_HEAD && self.taken == self.buffer.len() {
            // One huge frame must not keep its memory allocated until the connection ends.
            self.buffer = Vec::new();
            self.taken = 0;
        }
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_survive_any_cutting(
            frames in prop::collection::vec(("[a-z\"\\\\\u{0}-\u{ff}]{0,40}", prop::collection::vec(any::<u8>(), 0..200)), 1..6),
            cut in 1usize..50,
        ) {
            let stream: Vec<u8> = frames.iter().flat_map(|(head, body)| encode(head, body)).collect();
            let mut decoder = Decoder::default();
            let mut seen = Vec::new();
            for piece in stream.chunks(cut) {
                decoder.push(piece);
                while let Some(frame) = decoder.next_frame().unwrap() {
                    seen.push((frame.head::<String>().unwrap(), frame.body));
                }
            }
            prop_assert_eq!(seen, frames);
        }

        #[test]
        fn no_bytes_make_the_decoder_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            while let Ok(Some(_)) = decoder.next_frame() {}
        }
    }

    #[test]
    fn an_announced_length_is_refused_before_it_is_allocated() {
        let mut decoder = Decoder::default();
        decoder.push(&[0xff; 8]);
        assert!(matches!(decoder.next_frame(), Err(FrameError::HeadTooLarge(_))));
        let mut decoder = Decoder::default();
        decoder.push(&[2, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        assert!(matches!(decoder.next_frame(), Err(FrameError::BodyTooLarge(_))));
    }
}
