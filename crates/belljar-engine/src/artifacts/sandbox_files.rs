//! The files in a directory of a sandbox. The guest lists them and opens a few at a time.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use belljar_proto::guest::{RefusalCode, TreeFile, TreeLimits};
use belljar_runtime::{OpenedFile, RuntimeError, Sandbox, UntrustedFile, paths};

use super::RefusedArtifact;
use super::names::{harmless, shown};
use crate::EngineError;
use crate::error::in_full;

/// Why a file that changed meanwhile is not taken.
pub(super) const CHANGED: &str = "it changed while it was read; it is taken once it does not";

/// Files of a sandbox that are still to be opened.
pub(super) struct SandboxFiles<'a> {
    sandbox: &'a Sandbox,
    directory: &'static str,
    /// The path of the directory as users see it.
    root: &'static str,
    waiting: std::vec::IntoIter<TreeFile>,
    /// Files that cannot be taken, and why.
    pub(super) refused: Vec<RefusedArtifact>,
    /// Whether some files may be taken later.
    pub(super) left_some: bool,
    /// Files that changed since they were listed are left for later.
    pub(super) only_as_listed: bool,
    /// The content of files larger than this is not needed.
    pub(super) most: u64,
}

/// A plain file, open for reading.
pub(super) struct FoundFile {
    /// Its path below the directory on the host.
    pub(super) relative: PathBuf,
    /// Its path in the sandbox, as users see it.
    pub(super) path: String,
    pub(super) file: UntrustedFile,
    /// How many bytes are read at most.
    pub(super) size: u64,
    /// Identifies the file as it was when it was opened. A file that has changed since is not removed.
    pub(super) identity: TreeFile,
}

impl FoundFile {
    pub(super) fn name(&self) -> String {
        self.relative.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// Whether it was not written to since it was opened.
    pub(super) fn is_unchanged(&self) -> io::Result<bool> {
        let now = self.file.metadata()?;
        let modified_ns = now.mtime().wrapping_mul(1_000_000_000).wrapping_add(now.mtime_nsec());
        Ok((now.len(), modified_ns) == written(&self.identity))
    }
}

/// The attributes that change when a file is written to.
fn written(file: &TreeFile) -> (u64, i64) {
    (file.size, file.modified_ns)
}

impl<'a> SandboxFiles<'a> {
    pub(super) async fn begin(
        sandbox: &'a Sandbox,
        (directory, root): (&'static str, &'static str),
        limits: TreeLimits,
    ) -> Result<SandboxFiles<'a>, EngineError> {
        let tree =
            sandbox.list_tree(directory, limits).await.map_err(EngineError::ListArtifacts)?;
        let mut files = tree.files;
        // The guest is not trusted to keep the limit.
        files.truncate(usize::try_from(limits.files).unwrap_or(usize::MAX));
        let mut found = SandboxFiles {
            sandbox,
            directory,
            root,
            left_some: files.len() as u64 == limits.files,
            only_as_listed: false,
            most: u64::MAX,
            waiting: files.into_iter(),
            refused: Vec::new(),
        };
        for skipped in tree.skipped {
            found.refuse(&skipped.path, skipped.reason);
        }
        if tree.skipped_more > 0 {
            found.refuse(b"...", format!("{} more were not taken", tree.skipped_more));
        }
        Ok(found)
    }

    /// Only these files, without listing the directory.
    pub(super) fn named(
        sandbox: &'a Sandbox,
        (directory, root): (&'static str, &'static str),
        paths: impl IntoIterator<Item = Vec<u8>>,
    ) -> SandboxFiles<'a> {
        let file = |path| TreeFile { path, ..TreeFile::default() };
        let waiting: Vec<TreeFile> = paths.into_iter().map(file).collect();
        SandboxFiles {
            sandbox,
            directory,
            root,
            left_some: false,
            only_as_listed: false,
            most: u64::MAX,
            waiting: waiting.into_iter(),
            refused: Vec::new(),
        }
    }

    /// Leaves out the known files, and returns them.
    pub(super) fn pass_over(&mut self, is_known: impl Fn(&TreeFile) -> bool) -> Vec<TreeFile> {
        let (known, rest) = self.waiting.by_ref().partition::<Vec<_>, _>(is_known);
        self.waiting = rest.into_iter();
        known
    }

    fn refuse(&mut self, path: &[u8], reason: impl Into<String>) {
        self.refused.push(RefusedArtifact { path: shown(self.root, path), reason: reason.into() });
    }

    /// The next few files; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Vec<FoundFile>> {
        let batch: Vec<TreeFile> = self.waiting.by_ref().take(Sandbox::MAX_OPENED).collect();
        if batch.is_empty() {
            return None;
        }
        let opened = match self.sandbox.open_files(self.directory, &batch, self.most).await {
            Ok(opened) => opened,
            Err(error) => {
                let why = in_full(&error);
                batch.iter().for_each(|file| self.refuse(&file.path, why.clone()));
                return Some(Vec::new());
            }
        };
        let found = batch.into_iter().zip(opened);
        Some(found.filter_map(|(listed, opened)| self.accept(listed, opened)).collect())
    }

    fn accept(
        &mut self,
        listed: TreeFile,
        opened: Result<OpenedFile, RuntimeError>,
    ) -> Option<FoundFile> {
        let path = listed.path.clone();
        let Some(relative) = harmless(&path) else {
            self.refuse(&path, "its name leads elsewhere");
            return None;
        };
        match opened {
            Err(RuntimeError::Refused(refusal)) if refusal.code == RefusalCode::NotFound => {
                self.refuse(&path, "there is no such file");
                None
            }
            Err(error) => {
                self.refuse(&path, in_full(&error));
                None
            }
            // The copy would be incomplete, and removing the file would lose the rest.
            Ok(opened) if opened.being_written => {
                self.left_some = true;
                let until = match self.directory {
                    paths::ARTIFACTS => "it is taken once it is closed",
                    _ => "close it first",
                };
                self.refuse(&path, format!("it is open for writing; {until}"));
                None
            }
            Ok(opened) => self.found(listed, opened, relative),
        }
    }

    /// A file that may be taken, unless it changed since it was listed.
    fn found(
        &mut self,
        listed: TreeFile,
        opened: OpenedFile,
        relative: PathBuf,
    ) -> Option<FoundFile> {
        let identity = TreeFile {
            path: listed.path.clone(),
            size: opened.size,
            inode: opened.inode,
            changed_ns: opened.changed_ns,
            modified_ns: opened.modified_ns,
        };
        if self.only_as_listed && identity != listed {
            self.left_some = true;
            return None;
        }
        // The file was not open for writing when the guest checked, but it changed since it was listed. It may be
        // incomplete.
        if identity.inode == listed.inode && written(&identity) != written(&listed) {
            self.left_some = true;
            self.refuse(&listed.path, CHANGED);
            return None;
        }
        let path = shown(self.root, &identity.path);
        Some(FoundFile { relative, path, size: opened.size, file: opened.file, identity })
    }
}
