//! Digests as registries write them, and readers and writers that compute them.

use std::fmt;
use std::io::{self, Read, Write};
use std::str::FromStr;

use belljar_proto::digest::Digest;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// A SHA-256 digest, written with its algorithm: `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct OciDigest(Digest);

const PREFIX: &str = "sha256:";

impl OciDigest {
    #[must_use]
    pub fn of(bytes: &[u8]) -> OciDigest {
        OciDigest(Digest::of(bytes))
    }

    /// The digits alone, for file names.
    #[must_use]
    pub fn hex(&self) -> String {
        self.0.to_string()
    }

    /// From the digits alone.
    #[must_use]
    pub fn from_hex(hex: &str) -> Option<OciDigest> {
        hex.parse().ok().map(OciDigest)
    }

    /// The chain id of a stack of layers (OCI): for one layer its own digest; for each further
    /// layer the digest of the chain id so far and the layer's digest.
    #[must_use]
    pub fn of_chain(layers: &[OciDigest]) -> Option<OciDigest> {
        let (first, rest) = layers.split_first()?;
        Some(
            rest.iter()
                .fold(*first, |below, layer| OciDigest::of(format!("{below} {layer}").as_bytes())),
        )
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a SHA-256 digest")]
pub struct NotAnOciDigest(String);

impl FromStr for OciDigest {
    type Err = NotAnOciDigest;

    fn from_str(text: &str) -> Result<OciDigest, NotAnOciDigest> {
        let digest = text.strip_prefix(PREFIX).and_then(OciDigest::from_hex);
        digest.ok_or_else(|| NotAnOciDigest(text.chars().take(100).collect()))
    }
}

impl TryFrom<String> for OciDigest {
    type Error = NotAnOciDigest;

    fn try_from(text: String) -> Result<OciDigest, NotAnOciDigest> {
        text.parse()
    }
}

impl From<OciDigest> for String {
    fn from(digest: OciDigest) -> String {
        digest.to_string()
    }
}

impl fmt::Display for OciDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.0)
    }
}

impl fmt::Debug for OciDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A digest that is being computed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Hash(Sha256);

impl Hash {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    #[must_use]
    pub(crate) fn finish(self) -> OciDigest {
        OciDigest(self.0.into())
    }
}

/// Hashes and counts the bytes that are read through it.
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

    /// Reads the rest. Returns the digest and the size of everything that was read.
    pub(crate) fn finish(mut self) -> io::Result<(OciDigest, u64)> {
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

/// Hashes and counts the bytes that are written through it.
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

    pub(crate) fn finish(self) -> (W, OciDigest, u64) {
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
        assert_eq!(OciDigest::of(b"").to_string(), empty);
        assert_eq!(empty.parse::<OciDigest>().unwrap().hex().len(), 64);
        for wrong in ["", "sha256:", "sha256:../../x", &empty.to_uppercase(), &empty[..70]] {
            assert!(wrong.parse::<OciDigest>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_chain_is_named_as_the_specification_says() {
        let (a, b) = (OciDigest::of(b"a"), OciDigest::of(b"b"));
        assert_eq!(OciDigest::of_chain(&[]), None);
        assert_eq!(OciDigest::of_chain(std::slice::from_ref(&a)), Some(a));
        let expected = OciDigest::of(format!("{a} {b}").as_bytes());
        assert_eq!(OciDigest::of_chain(&[a, b]), Some(expected));
    }
}
