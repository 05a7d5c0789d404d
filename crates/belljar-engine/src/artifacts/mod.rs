//! Brings the files that code left behind to the host.
//!
//! The host opens no path that code in the sandbox controls. The guest lists and opens, following
//! no links; the host gets descriptors, checks that each is a plain file opened for reading, and
//! copies no more than the size it had then. Names are only ever used below a directory that the
//! host itself has just made.

pub mod blobs;
mod digest;
pub mod mime;
mod pins;
pub mod tokens;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use belljar_proto::guest::TreeLimits;
use belljar_runtime::{Sandbox, paths};
use serde::Serialize;

use crate::EngineError;

/// What one run may leave behind.
#[derive(Debug, Clone, Copy)]
pub struct ArtifactLimits {
    pub files: u64,
    pub depth: u32,
    /// Bytes of one file, and of all together.
    pub file_bytes: u64,
    pub total_bytes: u64,
}

impl Default for ArtifactLimits {
    fn default() -> Self {
        ArtifactLimits { files: 10_000, depth: 32, file_bytes: 1 << 30, total_bytes: 4 << 30 }
    }
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Artifacts {
    pub artifacts: Vec<Artifact>,
    /// Path in the sandbox to path on the host.
    pub artifact_map: BTreeMap<String, PathBuf>,
    /// What was not taken, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub artifacts_refused: Vec<Refused>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Artifact {
    pub name: String,
    /// In the sandbox.
    pub path: String,
    pub host_path: PathBuf,
    pub size: u64,
}

#[derive(Debug, Clone, Serialize)]
pub struct Refused {
    pub path: String,
    pub reason: String,
}

/// Copies the artifacts of `sandbox` below `directory`, which is made when there is one to copy.
pub async fn promote(
    sandbox: &Sandbox,
    directory: &Path,
    limits: ArtifactLimits,
) -> Result<Artifacts, EngineError> {
    let tree_limits = TreeLimits { files: limits.files, depth: limits.depth };
    let tree = sandbox
        .list_tree(paths::ARTIFACTS, tree_limits)
        .await
        .map_err(EngineError::ListArtifacts)?;
    let mut promoted = Artifacts::default();
    for skipped in tree.skipped {
        refuse(&mut promoted, &skipped.path, skipped.reason);
    }
    if tree.skipped_more > 0 {
        refuse(&mut promoted, b"...", format!("{} more were not taken", tree.skipped_more));
    }
    let mut total = 0;
    // The guest is asked to keep the limit and is not believed to have done so.
    for file in tree.files.into_iter().take(usize::try_from(limits.files).unwrap_or(usize::MAX)) {
        let Some(relative) = harmless(&file.path) else {
            refuse(&mut promoted, &file.path, "its name leads elsewhere".into());
            continue;
        };
        let (opened, size) = match sandbox.open_file(paths::ARTIFACTS, &file.path).await {
            Ok(opened) => opened,
            Err(error) => {
                refuse(&mut promoted, &file.path, crate::in_full(&error));
                continue;
            }
        };
        if size > limits.file_bytes || total + size > limits.total_bytes {
            refuse(&mut promoted, &file.path, format!("{size} bytes are too many"));
            continue;
        }
        let host_path = directory.join(&relative);
        let target = host_path.clone();
        let copied = tokio::task::spawn_blocking(move || copy(&opened, size, &target)).await;
        match copied.unwrap_or_else(|panic| Err(io::Error::other(panic))) {
            Ok(size) => {
                total += size;
                let path = shown(&file.path);
                promoted.artifact_map.insert(path.clone(), host_path.clone());
                let name = relative.file_name().unwrap_or_default().to_string_lossy().into_owned();
                promoted.artifacts.push(Artifact { name, path, host_path, size });
            }
            Err(error) => refuse(
                &mut promoted,
                &file.path,
                format!("failed to write `{}`: {error}", host_path.display()),
            ),
        }
    }
    Ok(promoted)
}

fn refuse(promoted: &mut Artifacts, path: &[u8], reason: String) {
    promoted.artifacts_refused.push(Refused { path: shown(path), reason });
}

/// The path as code in the sandbox knows it; bytes that are no text are shown as `%XX`.
fn shown(relative: &[u8]) -> String {
    format!("{}/{}", paths::RUN_ARTIFACTS, readable(relative, |_| false))
}

/// Bytes as text; what is no text, and characters that `escape` picks, as `%XX`.
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

/// The path to use on the host, if it is a relative one of plain names: always text, and without
/// characters that a terminal or a log would obey.
fn harmless(path: &[u8]) -> Option<PathBuf> {
    let path = Path::new(std::ffi::OsStr::from_bytes(path));
    let mut names = path.components().map(|component| match component {
        Component::Normal(name) => Some(readable(name.as_bytes(), char::is_control)),
        _ => None,
    });
    let first = names.next()??;
    names.try_fold(PathBuf::from(first), |path, name| Some(path.join(name?)))
}

/// Copies at most `size` bytes: a file that grows meanwhile is cut where it was when we looked.
fn copy(from: &File, size: u64, to: &Path) -> io::Result<u64> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent)?;
    }
    let mut target = File::create_new(to)?;
    io::copy(&mut from.take(size), &mut target)
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
        assert_eq!(shown("pl\u{f6}t.png".as_bytes()), "/work/artifacts/pl\u{f6}t.png");
        assert_eq!(shown(b"a\xff\n"), "/work/artifacts/a%FF\n");
    }
}
