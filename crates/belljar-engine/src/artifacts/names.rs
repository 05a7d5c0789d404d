//! File names from a sandbox, which can contain any bytes.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

/// The path as users see it; bytes that are not UTF-8 are written as `%XX`.
pub(super) fn shown(root: &str, relative: &[u8]) -> String {
    format!("{root}/{}", readable(relative, |_| false))
}

/// Bytes as text; bytes that are not UTF-8, and characters that `escape` selects, as `%XX`.
fn readable(bytes: &[u8], escape: impl Fn(char) -> bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    let percent = |text: &mut String, bytes: &[u8]| {
        for byte in bytes {
            let _ = write!(text, "%{byte:02X}");
        }
    };
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            if escape(character) {
                percent(&mut text, character.encode_utf8(&mut [0; 4]).as_bytes());
            } else {
                text.push(character);
            }
        }
        percent(&mut text, chunk.invalid());
    }
    text
}

/// The path to use on the host, if it is relative and has only plain names. The result is always
/// UTF-8 without control characters.
pub(super) fn harmless(path: &[u8]) -> Option<PathBuf> {
    let path = Path::new(OsStr::from_bytes(path));
    let mut names = path.components().map(|component| match component {
        Component::Normal(name) => Some(readable(name.as_bytes(), char::is_control)),
        _ => None,
    });
    let first = names.next()??;
    names.try_fold(PathBuf::from(first), |path, name| Some(path.join(name?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for hostile in [&b"../x"[..], b"a/../../x", b"/etc/passwd", b"", b"..", b"."] {
            assert_eq!(harmless(hostile), None, "{}", String::from_utf8_lossy(hostile));
        }
        assert_eq!(harmless(b"a/b\n\xff"), Some("a/b%0A%FF".into()));
        assert_eq!(harmless(b"..."), Some("...".into()));
    }

    #[test]
    fn any_name_can_be_shown() {
        assert_eq!(
            shown("/work/artifacts", "pl\u{f6}t.png".as_bytes()),
            "/work/artifacts/pl\u{f6}t.png"
        );
        assert_eq!(shown("/work/artifacts", b"a\xff\n"), "/work/artifacts/a%FF\n");
    }
}
