//! Signed tokens. With a token, a client can download one artifact without an API key until the token expires.
//!
//! A token is `base64url(expiry || mac)`, where the mac covers the method, the artifact and the
//! expiry. Tokens are not stored, so a single one cannot be revoked; to revoke all, remove the file
//! of the signing key and restart the server.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest as _, Sha256};

const KEY_BYTES: usize = 32;
const EXPIRY_BYTES: usize = 8;
const MAC_BYTES: usize = 32;
/// Characters of a token; text of another length is not decoded.
const TOKEN_CHARS: usize = ((EXPIRY_BYTES + MAC_BYTES) * 8).div_ceil(6);

/// Distinguishes these macs from others that may be made with the same key later.
const PURPOSE: &[u8] = b"belljar artifact v1";

/// What a token allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Download it; also `HEAD`.
    Get,
    /// Only whether it exists, and its size.
    Head,
}

/// The secret of the server. `Debug` does not show it.
#[derive(Clone)]
pub(super) struct SigningKey([u8; KEY_BYTES]);

impl SigningKey {
    /// Reads the key at `path`, or makes one there. Processes that start at the same time get the same
    /// key, and a crash leaves no incomplete one.
    pub(super) fn load_or_create(path: &Path) -> io::Result<SigningKey> {
        match SigningKey::load(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create(path)?;
                SigningKey::load(path)
            }
            loaded => loaded,
        }
        .map_err(|error| {
            let shown = path.display();
            io::Error::new(error.kind(), format!("failed to load the key `{shown}`: {error}"))
        })
    }

    /// The key of a secret: the secret itself if it is a key, else its hash.
    pub(super) fn of_secret(secret: &[u8]) -> SigningKey {
        SigningKey(secret.try_into().unwrap_or_else(|_| Sha256::digest(secret).into()))
    }

    fn load(path: &Path) -> io::Result<SigningKey> {
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a plain file"));
        }
        if metadata.permissions().mode() & 0o077 != 0 {
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
        }
        let mut bytes = Vec::with_capacity(KEY_BYTES + 1);
        file.take(KEY_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        let key = bytes.try_into().map_err(|_| {
            let wanted = format!("it is not {KEY_BYTES} bytes long; remove it to get a new one");
            io::Error::new(io::ErrorKind::InvalidData, wanted)
        })?;
        Ok(SigningKey(key))
    }

    /// A token that is valid until just before the second `expires_s` of the UNIX clock.
    #[must_use]
    pub(super) fn sign(&self, method: Method, id: &str, expires_s: u64) -> String {
        let mut token = [0; EXPIRY_BYTES + MAC_BYTES];
        let (expiry, mac) = token.split_at_mut(EXPIRY_BYTES);
        expiry.copy_from_slice(&expires_s.to_be_bytes());
        mac.copy_from_slice(&self.mac(method, id, expires_s).finalize().into_bytes());
        URL_SAFE_NO_PAD.encode(token)
    }

    /// Whether `token` allows `method` on `id` now. The same macs are computed and compared for every token, so the
    /// duration does not reveal why a token is invalid.
    #[must_use]
    pub(super) fn verify(&self, method: Method, id: &str, token: &str, now_s: u64) -> bool {
        let decoded = decode(token);
        let well_formed = decoded.is_some();
        let (expires_s, mac) = decoded.unwrap_or_default();
        let for_get = self.mac(Method::Get, id, expires_s).verify_slice(&mac).is_ok();
        let for_head = self.mac(Method::Head, id, expires_s).verify_slice(&mac).is_ok();
        // `&` and `|` always evaluate both sides.
        well_formed & (now_s < expires_s) & (for_get | (for_head & (method == Method::Head)))
    }

    fn mac(&self, method: Method, id: &str, expires_s: u64) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as KeyInit>::new(&self.padded().into());
        let method: &[u8] = match method {
            Method::Get => b"GET",
            Method::Head => b"HEAD",
        };
        // The length of each part comes before it, so two different lists never give the same bytes.
        for part in [PURPOSE, method, id.as_bytes(), &expires_s.to_be_bytes()] {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        }
        mac
    }

    /// The key, padded with zeros to a block of the hash, as HMAC does with a short key.
    fn padded(&self) -> [u8; 64] {
        let mut padded = [0; 64];
        padded[..KEY_BYTES].copy_from_slice(&self.0);
        padded
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(..)")
    }
}

/// The expiry and the mac in a token; `None` if the text is not a token.
fn decode(token: &str) -> Option<(u64, [u8; MAC_BYTES])> {
    if token.len() != TOKEN_CHARS {
        return None;
    }
    let bytes = URL_SAFE_NO_PAD.decode(token).ok()?;
    let (expiry, mac) = bytes.split_first_chunk::<EXPIRY_BYTES>()?;
    Some((u64::from_be_bytes(*expiry), mac.try_into().ok()?))
}

/// The key in a file; `None` if there is no such file.
pub(crate) fn read_key(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match SigningKey::load(path) {
        Ok(key) => Ok(Some(key.0.to_vec())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes a new key to another file and links it at `path`, unless another process was faster.
fn create(path: &Path) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(format!(".{}", belljar_sys::process::random_name()));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
    let linked = file
        .write_all(&belljar_sys::process::random_bytes::<KEY_BYTES>())
        .and_then(|()| file.sync_all())
        .and_then(|()| match fs::hard_link(&aside, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        });
    fs::remove_file(&aside)?;
    linked?;
    // The directory is synced even if another process was faster: our signatures must still be valid after a power cut.
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_800_000_000;

    fn key(byte: u8) -> SigningKey {
        SigningKey([byte; KEY_BYTES])
    }

    #[test]
    fn a_token_is_good_for_what_it_was_signed_for() {
        let key = key(1);
        let get = key.sign(Method::Get, "art_1", NOW + 1);
        let head = key.sign(Method::Head, "art_1", NOW + 1);
        assert!(key.verify(Method::Get, "art_1", &get, NOW));
        assert!(key.verify(Method::Head, "art_1", &get, NOW), "a token for GET allows HEAD");
        assert!(key.verify(Method::Head, "art_1", &head, NOW));
        assert!(
            !key.verify(Method::Get, "art_1", &head, NOW),
            "a token for HEAD does not allow GET"
        );
        for foreign in ["art_2", "art_", "art_11", "", "ART_1"] {
            assert!(!key.verify(Method::Get, foreign, &get, NOW), "{foreign}");
        }
        assert!(!self::key(2).verify(Method::Get, "art_1", &get, NOW));
    }

    #[test]
    fn it_expires_at_the_second() {
        let key = key(1);
        let token = key.sign(Method::Get, "a", NOW);
        assert!(key.verify(Method::Get, "a", &token, NOW - 1));
        assert!(!key.verify(Method::Get, "a", &token, NOW));
        assert!(!key.verify(Method::Get, "a", &token, u64::MAX));
        let eternal = key.sign(Method::Get, "a", u64::MAX);
        assert!(key.verify(Method::Get, "a", &eternal, u64::MAX - 1));
        assert!(!key.verify(Method::Get, "a", &eternal, u64::MAX));
    }

    #[test]
    fn no_bit_of_it_can_be_changed() {
        let key = key(1);
        let token = key.sign(Method::Get, "a", NOW + 1);
        let bytes = URL_SAFE_NO_PAD.decode(&token).unwrap();
        for bit in 0..bytes.len() * 8 {
            let mut altered = bytes.clone();
            altered[bit / 8] ^= 1 << (bit % 8);
            let altered = URL_SAFE_NO_PAD.encode(altered);
            assert!(!key.verify(Method::Get, "a", &altered, NOW), "bit {bit}");
        }
        // Changed characters are refused too: the unused bits of the last one must be zero.
        for at in 0..token.len() {
            for other in "ABCXYZabcxyz0189-_=+/ \n".chars() {
                let mut altered = token.clone();
                altered.replace_range(at..=at, &other.to_string());
                assert!(altered == token || !key.verify(Method::Get, "a", &altered, NOW));
            }
        }
    }

    #[test]
    fn other_text_is_refused() {
        let key = key(1);
        let token = key.sign(Method::Get, "a", NOW + 1);
        let zeros = URL_SAFE_NO_PAD.encode([0; EXPIRY_BYTES + MAC_BYTES]);
        let ones = URL_SAFE_NO_PAD.encode([0xff; EXPIRY_BYTES + MAC_BYTES]);
        let long = format!("{token}A");
        let padded = format!("{token}==");
        let huge = "A".repeat(10_000_000);
        let accents = "\u{e9}".repeat(TOKEN_CHARS / 2);
        let short = &token[..token.len() - 1];
        for bad in ["", "x", short, &zeros, &ones, &long, &padded, &huge, &accents] {
            assert!(!key.verify(Method::Get, "a", bad, NOW));
            assert!(!key.verify(Method::Get, "a", bad, 0));
        }
    }

    #[test]
    fn the_mac_is_hmac_sha256() {
        // Computed with Python's hmac module.
        assert_eq!(
            key(7).sign(Method::Get, "art_1", NOW),
            "AAAAAGtJ0gDgQ2OMrNGsY3dlhtorFeZECoLK2c0MekElD844DA4qCw"
        );
    }

    #[test]
    fn a_key_is_made_once_and_found_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("signing.key");
        let keys: Vec<_> = std::thread::scope(|scope| {
            let starters: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| SigningKey::load_or_create(&path).unwrap()))
                .collect();
            starters.into_iter().map(|starter| starter.join().unwrap().0).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]), "all starters agree");
        assert_ne!(keys[0], [0; KEY_BYTES]);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left aside");
        assert_eq!(format!("{:?}", SigningKey(keys[0])), "SigningKey(..)");
    }

    #[test]
    fn a_key_that_others_can_read_is_closed_and_a_broken_one_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("signing.key");
        fs::write(&path, [7; KEY_BYTES]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(SigningKey::load_or_create(&path).unwrap().0, [7; KEY_BYTES]);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        for broken in [&[][..], &[7; KEY_BYTES - 1], &[7; KEY_BYTES + 1]] {
            fs::write(&path, broken).unwrap();
            let error = SigningKey::load_or_create(&path).unwrap_err().to_string();
            assert!(error.contains("signing.key") && error.contains("32 bytes"), "{error}");
            assert_eq!(fs::read(&path).unwrap(), broken, "it is left for a person to look at");
        }
        let error = SigningKey::load_or_create(directory.path()).unwrap_err().to_string();
        assert!(error.contains("not a plain file"), "{error}");
        assert!(SigningKey::load_or_create(&directory.path().join("missing/key")).is_err());
    }
}
