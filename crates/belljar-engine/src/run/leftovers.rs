//! Files that are copied into the sandbox of a run, and files outside of the artifacts, which are lost when the sandbox
//! is removed.

use std::fs::File;
use std::io;
use std::path::PathBuf;

use belljar_proto::guest::{TreeFile, TreeLimits};
use belljar_runtime::{Sandbox, paths};
use serde::Serialize;

use crate::EngineError;

/// Limits of the files that are counted.
const LIMITS: TreeLimits = TreeLimits { files: 10_000, depth: 32 };

/// How many files are listed by name.
const NAMED: usize = 20;

/// A file of the host to copy into the working directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BroughtFile {
    /// Below the working directory.
    pub path: Vec<u8>,
    pub content: PathBuf,
}

/// Files that the code left in its working directory, except artifacts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Leftovers {
    /// The first few names, relative to the working directory.
    pub named: Vec<String>,
    pub files: u64,
    pub bytes: u64,
}

impl Leftovers {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.files == 0
    }
}

/// Copies files into the working directory, and returns them, so that [`look`] can leave them out.
pub(super) async fn bring(
    sandbox: &Sandbox,
    files: &[BroughtFile],
) -> Result<Vec<TreeFile>, EngineError> {
    let mut brought = Vec::with_capacity(files.len());
    for BroughtFile { path, content } in files {
        let (mut file, temporary) =
            sandbox.create_file(paths::SESSION, path).await.map_err(EngineError::Files)?;
        let source = content.clone();
        let copied = tokio::task::spawn_blocking(move || -> io::Result<()> {
            io::copy(&mut File::open(source)?, &mut file)?;
            Ok(())
        });
        let copied = copied.await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        copied.map_err(|cause| EngineError::Bring { path: content.clone(), cause })?;
        brought.push(sandbox.commit_file(&temporary).await.map_err(EngineError::Files)?);
    }
    Ok(brought)
}

/// Lists the files that the code left. Empty if the sandbox does not answer.
pub(super) async fn look(sandbox: &Sandbox, brought: &[TreeFile]) -> Leftovers {
    let Ok(tree) = sandbox.list_tree(paths::SESSION, LIMITS).await else {
        return Leftovers::default();
    };
    let mut left = Leftovers::default();
    // The guest is not trusted to respect the limit.
    let most = usize::try_from(LIMITS.files).unwrap_or(usize::MAX);
    for file in tree.files.iter().take(most).filter(|file| counts(file, brought)) {
        left.files += 1;
        left.bytes = left.bytes.saturating_add(file.size);
        if left.named.len() < NAMED {
            left.named.push(String::from_utf8_lossy(&file.path).into_owned());
        }
    }
    left
}

/// Whether the code wrote this file, and a user may want to keep it.
fn counts(file: &TreeFile, brought: &[TreeFile]) -> bool {
    let mut parts = file.path.split(|byte| *byte == b'/').peekable();
    // Private files of programs: settings, caches, packages of `pip`.
    let is_private = |part: &[u8]| part.starts_with(b".") || part == b"__pycache__";
    parts.peek() != Some(&b"artifacts".as_slice())
        && !parts.any(is_private)
        && !brought.contains(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_code_itself_wrote_counts() {
        let file = |path: &str, size| TreeFile { path: path.into(), size, ..TreeFile::default() };
        let brought = [file("script.py", 7)];
        for (path, size, is_counted) in [
            ("out.csv", 1, true),
            ("deep/artifacts/x", 1, true),
            ("data/x", 1, true),
            ("artifacts/x", 1, false),
            (".config/x", 1, false),
            ("lib/__pycache__/x.pyc", 1, false),
            ("script.py", 7, false),
            // The code overwrote it.
            ("script.py", 8, true),
        ] {
            assert_eq!(counts(&file(path, size), &brought), is_counted, "{path} {size}");
        }
    }
}
