//! The SHA-256 of a content, by which artifacts, datasets and image layers are named. It is here
//! because this is the lowest crate that both the image store and the engine use.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

/// 32 bytes, written as 64 hexadecimal digits in lower case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    #[must_use]
    pub fn of(content: &[u8]) -> Digest {
        Digest::from(Sha256::new().chain_update(content))
    }
}

impl From<Sha256> for Digest {
    fn from(hash: Sha256) -> Digest {
        Digest(hash.finalize().into())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a digest is 64 hexadecimal digits in lower case")]
pub struct NotADigest;

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = NotADigest;

    /// Refuses upper case: a digest has one spelling, since it names a file.
    fn from_str(text: &str) -> Result<Digest, NotADigest> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut bytes = [0; 32];
        if pairs.len() != bytes.len() || !rest.is_empty() {
            return Err(NotADigest);
        }
        for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
            *byte = hex(*high).ok_or(NotADigest)? << 4 | hex(*low).ok_or(NotADigest)?;
        }
        Ok(Digest(bytes))
    }
}

fn hex(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_has_one_spelling() {
        let text = "00ff10".to_string() + &"ab".repeat(29);
        let digest: Digest = text.parse().unwrap();
        assert_eq!(digest.0[..4], [0, 255, 16, 0xab]);
        assert_eq!(digest.to_string(), text);
        let json = serde_json::to_string(&digest).unwrap();
        assert_eq!(json, format!("{text:?}"));
        assert_eq!(serde_json::from_str::<Digest>(&json).unwrap(), digest);
        let accents = "\u{e9}".repeat(32);
        for bad in ["", "00", &text[1..], &text.to_uppercase(), &format!("{text}00"), &accents] {
            assert_eq!(bad.parse::<Digest>(), Err(NotADigest), "{bad}");
            assert!(serde_json::from_str::<Digest>(&format!("{bad:?}")).is_err());
        }
    }
}
