//! How a guest in a container and its host recognise each other before the first message.
//!
//! Over a socket the guest first sends the nonce of its first connection, or zeros before that. Over standard
//! input and output, which stay open when a host dies, each conversation begins with a marker.

/// The length of a nonce.
pub const GUEST_HELLO_SIZE: usize = 32;

/// The first bytes that a guest sends on a connection that it made.
#[must_use]
pub fn guest_hello(nonce: &str) -> [u8; GUEST_HELLO_SIZE] {
    let mut hello = [0; GUEST_HELLO_SIZE];
    for (to, from) in hello.iter_mut().zip(nonce.bytes()) {
        *to = from;
    }
    hello
}

pub const MARKER_SIZE: usize = 32;

/// Marks the beginning of a conversation in a stream of bytes. Code in the sandbox cannot guess it.
pub type Marker = [u8; MARKER_SIZE];

/// The marker of a sandbox with this nonce.
#[must_use]
pub fn marker(nonce: &str) -> Marker {
    let mut marker = guest_hello(nonce);
    // Different from the nonce itself, which occurs as text within a conversation.
    marker.iter_mut().for_each(|byte| *byte ^= 0x80);
    marker
}

#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    Bytes(Vec<u8>),
    Marker,
}

/// Finds the marker in a stream that comes in pieces.
#[derive(Debug)]
pub struct Scanner {
    marker: Marker,
    buffer: Vec<u8>,
}

impl Scanner {
    #[must_use]
    pub fn new(marker: Marker) -> Scanner {
        Scanner { marker, buffer: Vec::new() }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next piece. Bytes that may be the beginning of a marker wait for more.
    pub fn next_piece(&mut self) -> Option<Piece> {
        if self.buffer.starts_with(&self.marker) {
            self.buffer.drain(..MARKER_SIZE);
            return Some(Piece::Marker);
        }
        let begun = |from: usize| {
            let rest = &self.buffer[from..];
            let length = rest.len().min(MARKER_SIZE);
            rest[..length] == self.marker[..length]
        };
        let candidates = (0..self.buffer.len()).filter(|&at| self.buffer[at] == self.marker[0]);
        let end = candidates.into_iter().find(|&at| begun(at)).unwrap_or(self.buffer.len());
        if end == 0 {
            return None;
        }
        let rest = self.buffer.split_off(end);
        Some(Piece::Bytes(std::mem::replace(&mut self.buffer, rest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Everything up to the last marker, and what follows it.
    fn pieces(stream: &[u8], step: usize, marker: Marker) -> Vec<Piece> {
        let mut scanner = Scanner::new(marker);
        let mut found: Vec<Piece> = Vec::new();
        for part in stream.chunks(step) {
            scanner.push(part);
            while let Some(piece) = scanner.next_piece() {
                match (found.last_mut(), piece) {
                    (Some(Piece::Bytes(before)), Piece::Bytes(more)) => before.extend(more),
                    (_, piece) => found.push(piece),
                }
            }
        }
        found
    }

    #[test]
    fn a_marker_is_found_however_it_is_cut() {
        let marker = marker("0123456789abcdef0123456789abcdef");
        let mut stream = b"half a mess".to_vec();
        stream.extend(&marker[..20]);
        stream.extend(marker);
        stream.extend(b"hello");
        let mut before = b"half a mess".to_vec();
        before.extend(&marker[..20]);
        for step in 1..stream.len() {
            let expected =
                vec![Piece::Bytes(before.clone()), Piece::Marker, Piece::Bytes(b"hello".to_vec())];
            assert_eq!(pieces(&stream, step, marker), expected, "in pieces of {step}");
        }
    }
}
