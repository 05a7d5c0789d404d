//! Content by its name: SHA-256, as registries write it.

use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// `sha256:` and 64 hexadecimal digits, in lower case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest(String);

const PREFIX: &str = "sha256:";

impl Digest {
    #[must_use]
    pub fn of(bytes: &[u8]) -> Digest {
        let mut hash = Hash::default();
        hash.update(bytes);
        hash.finish()
    }

    /// The digits alone, good for a file name.
    #[must_use]
    pub fn hex(&self) -> &str {
        &self.0[PREFIX.len()..]
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// From the digits alone.
    #[must_use]
    pub fn from_hex(hex: &str) -> Option<Digest> {
        format!("{PREFIX}{hex}").parse().ok()
    }

    /// What a stack of layers is called: the first by its own name, every further one by the name
    /// of the stack below it and its own.
    #[must_use]
    pub fn of_chain(layers: &[Digest]) -> Option<Digest> {
        let (first, rest) = layers.split_first()?;
        Some(
            rest.iter().fold(first.clone(), |below, layer| {
                Digest::of(format!("{below} {layer}").as_bytes())
            }),
        )
    }
}

/// Why something is no digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a SHA-256 digest")]
pub struct NotADigest(String);

impl FromStr for Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Digest, NotADigest> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        match text.strip_prefix(PREFIX) {
            Some(hex) if hex.len() == 64 && hex.bytes().all(is_digit) => Ok(Digest(text.into())),
            _ => Err(NotADigest(text.chars().take(100).collect())),
        }
    }
}

impl TryFrom<String> for Digest {
    type Error = NotADigest;

    fn try_from(text: String) -> Result<Digest, NotADigest> {
        text.parse()
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.0
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A digest in the making.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hash(Sha256);

impl Hash {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    #[must_use]
    pub(crate) fn finish(self) -> Digest {
        let hex: String = self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Digest(format!("{PREFIX}{hex}"))
    }
}

/// Hashes and counts what is read through it.
#[derive(Debug)]
pub(crate) struct HashingReader<R> {
    inner: R,
    hash: Hash,
    bytes: u64,
}

impl<R: Read> HashingReader<R> {
    pub(crate) fn new(inner: R) -> HashingReader<R> {
        HashingReader { inner, hash: Hash::default(), bytes: 0 }
    }

    /// Reads the rest, and tells of all that was read.
    pub(crate) fn finish(mut self) -> io::Result<(Digest, u64)> {
        io::copy(&mut self, &mut io::sink())?;
        Ok((self.hash.finish(), self.bytes))
    }
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.hash.update(&buffer[..n]);
        self.bytes += n as u64;
        Ok(n)
    }
}

/// Hashes and counts what is written through it.
#[derive(Debug)]
pub(crate) struct HashingWriter<W> {
    inner: W,
    hash: Hash,
    bytes: u64,
}

impl<W: Write> HashingWriter<W> {
    pub(crate) fn new(inner: W) -> HashingWriter<W> {
        HashingWriter { inner, hash: Hash::default(), bytes: 0 }
    }

    pub(crate) fn finish(self) -> (W, Digest, u64) {
        (self.inner, self.hash.finish(), self.bytes)
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(buffer)?;
        self.hash.update(&buffer[..n]);
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_written_as_registries_do() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").as_str(), empty);
        assert_eq!(empty.parse::<Digest>().unwrap().hex().len(), 64);
        for wrong in ["", "sha256:", "sha256:../../x", &empty.to_uppercase(), &empty[..70]] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_chain_is_named_as_the_specification_says() {
        let (a, b) = (Digest::of(b"a"), Digest::of(b"b"));
        assert_eq!(Digest::of_chain(&[]), None);
        assert_eq!(Digest::of_chain(std::slice::from_ref(&a)), Some(a.clone()));
        let expected = Digest::of(format!("{a} {b}").as_bytes());
        assert_eq!(Digest::of_chain(&[a, b]), Some(expected));
    }
}
