//! Files of a session, for its clients. A client can do what a program in the sandbox can do, and nothing else. The
//! guest does the work; the host gets descriptors of plain files and never opens a path.

use std::io::{self, Write};

use belljar_proto::guest::{FileChange, FileEntry, Listing, RefusalCode, TreeLimits};
use belljar_proto::job::JobReport;
use belljar_runtime::{
    Behind, FileChanges, OpenedFile, RuntimeError, Sandbox, Temporary, UntrustedFile, Wanted, paths,
};
use bytes::Bytes;

use super::{Engine, Principal};
use crate::blocking_writer::BlockingWriter;
use crate::error::EngineError;
use crate::session::{InUse, SandboxLease};
use crate::uploads::UploadPermit;

/// Limits of one listing.
const LISTED: TreeLimits = TreeLimits { files: 10_000, depth: 32 };

/// Changes below a directory, for a client that watches it.
#[derive(Debug)]
pub struct Watching {
    changes: FileChanges,
    _in_use: InUse,
}

impl Watching {
    /// The next change; `None` when the sandbox is gone.
    pub async fn next(&mut self) -> Result<Option<FileChange>, EngineError> {
        self.changes.next().await.map_err(EngineError::Files)
    }
}

/// An upload of a file. If it is dropped before it is finished, nothing of it is visible.
#[derive(Debug)]
pub struct FileUpload {
    sandbox: SandboxLease,
    writing: Option<Writing>,
    _place: UploadPermit,
}

#[derive(Debug)]
struct Writing {
    target: UploadTarget,
    incoming: BlockingWriter<UntrustedFile>,
}

/// Where an upload is written.
#[derive(Debug)]
enum UploadTarget {
    /// To a temporary file, which is renamed when the upload is complete.
    Temporary(Temporary),
    /// To the end of the file.
    Append(Behind),
}

impl FileUpload {
    /// Takes the next bytes, at the speed of the disk.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), EngineError> {
        let sent = match &self.writing {
            Some(writing) => writing.incoming.write(bytes).await,
            None => false,
        };
        if sent {
            return Ok(());
        }
        // The writing thread has ended with an error.
        match self.writing.take() {
            Some(writing) => Err(self.settle(writing).await.err().unwrap_or_else(broken_off)),
            None => Err(broken_off()),
        }
    }

    /// Ends the upload and makes the file visible.
    pub async fn finish(mut self) -> Result<(), EngineError> {
        let writing = self.writing.take().ok_or_else(broken_off)?;
        self.settle(writing).await
    }

    async fn settle(&self, writing: Writing) -> Result<(), EngineError> {
        let Writing { target, incoming } = writing;
        let written = match incoming.finish().await {
            Ok(file) => {
                file.close().await;
                Ok(())
            }
            Err(error) => Err(not_written(error)),
        };
        let temporary = match target {
            UploadTarget::Temporary(temporary) => temporary,
            UploadTarget::Append(behind) => {
                // The bytes that were written are kept, even after an error.
                let closed = self.sandbox.close_file(behind).await.map_err(EngineError::Files);
                return written.and(closed);
            }
        };
        let committed = match written {
            Ok(()) => {
                let committed = self.sandbox.commit_file(&temporary).await;
                committed.map(drop).map_err(EngineError::Files)
            }
            Err(error) => Err(error),
        };
        if committed.is_err() {
            // If this fails too, a hidden file remains.
            let _ = self.sandbox.discard_file(temporary).await;
        }
        committed
    }
}

impl Drop for FileUpload {
    fn drop(&mut self) {
        let Some(writing) = self.writing.take() else { return };
        let sandbox = self.sandbox.clone();
        tokio::spawn(async move {
            let _ = writing.incoming.finish().await;
            let _ = match writing.target {
                UploadTarget::Temporary(temporary) => sandbox.discard_file(temporary).await,
                UploadTarget::Append(behind) => sandbox.close_file(behind).await,
            };
        });
    }
}

pub(super) fn not_written(error: io::Error) -> EngineError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => EngineError::FullInside,
        _ => EngineError::WriteInside(error),
    }
}

pub(super) fn broken_off() -> EngineError {
    EngineError::UploadInterrupted
}

impl Engine {
    /// The file, directory or link at a path of a session. Links are not followed.
    pub async fn file_info(
        &self,
        who: &Principal,
        id: &str,
        path: &str,
    ) -> Result<FileEntry, EngineError> {
        let sandbox = self.used_sandbox(who, id).await?;
        sandbox.look(&inside(path)?).await.map_err(EngineError::Files)
    }

    pub async fn list_files(
        &self,
        who: &Principal,
        id: &str,
        path: &str,
        wanted: &Wanted,
    ) -> Result<Listing, EngineError> {
        let sandbox = self.used_sandbox(who, id).await?;
        let listing = sandbox.list_directory(&inside(path)?, wanted, LISTED).await;
        listing.map_err(EngineError::Files)
    }

    /// A plain file, opened for reading.
    pub async fn open_file(
        &self,
        who: &Principal,
        id: &str,
        path: &str,
    ) -> Result<OpenedFile, EngineError> {
        let sandbox = self.used_sandbox(who, id).await?;
        sandbox.open_path(&inside(path)?).await.map_err(EngineError::Files)
    }

    /// Begins to write a file; missing directories are created.
    pub async fn write_file(
        &self,
        who: &Principal,
        id: &str,
        path: &str,
        mode: Option<u32>,
    ) -> Result<FileUpload, EngineError> {
        let sandbox = self.used_sandbox(who, id).await?;
        let full = inside(path)?;
        let (directory, name) = split(&full)?;
        let place = self.state.uploads.permit(&who.tenant, id).await?;
        let create = || sandbox.create_file_with(&directory, name, mode);
        let (file, temporary) = in_directory(&sandbox, &directory, create).await?;
        let incoming = BlockingWriter::begin(file, |file, chunk| file.write_all(chunk));
        Ok(FileUpload {
            sandbox,
            writing: Some(Writing { target: UploadTarget::Temporary(temporary), incoming }),
            _place: place,
        })
    }

    /// Begins to append to a file. The file and its directories are created if they do not exist. Bytes are visible at
    /// once, even if the upload breaks off.
    pub async fn append_file(
        &self,
        who: &Principal,
        id: &str,
        path: &str,
        mode: Option<u32>,
    ) -> Result<FileUpload, EngineError> {
        let sandbox = self.used_sandbox(who, id).await?;
        let full = inside(path)?;
        let (directory, _) = split(&full)?;
        let place = self.state.uploads.permit(&who.tenant, id).await?;
        let mode = mode.unwrap_or(0o644);
        let append = || sandbox.append_file(&full, mode);
        let (file, behind) = in_directory(&sandbox, &directory, append).await?;
        let incoming = BlockingWriter::begin(file, |file, chunk| file.write_all(chunk));
        Ok(FileUpload {
            sandbox,
            writing: Some(Writing { target: UploadTarget::Append(behind), incoming }),
            _place: place,
        })
    }

    /// Watches a directory; meanwhile the session counts as in use.
    pub async fn watch_files(
        &self,
        who: &Principal,
        id: &str,
        path: &str,
        recursive: bool,
    ) -> Result<Watching, EngineError> {
        let session = self.settled_session(who, id).await?;
        let in_use = session.in_use()?;
        let changes = session.sandbox()?.watch_files(&inside(path)?, recursive).await;
        Ok(Watching { changes: changes.map_err(EngineError::Files)?, _in_use: in_use })
    }

    /// Copies a file, or a directory with everything in it.
    pub async fn copy_path(
        &self,
        who: &Principal,
        id: &str,
        path: &str,
        to: &str,
    ) -> Result<JobReport, EngineError> {
        let sandbox = self.used_sandbox(who, id).await?;
        let job = sandbox.copy_path(&inside(path)?, &inside(to)?).await;
        sandbox.finish(job.map_err(EngineError::Files)?).await.map_err(EngineError::Files)
    }

    /// Makes a directory and those above it.
    pub async fn make_directory(
        &self,
        who: &Principal,
        id: &str,
        path: &str,
    ) -> Result<(), EngineError> {
        let sandbox = self.used_sandbox(who, id).await?;
        sandbox.make_directory(&inside(path)?).await.map_err(EngineError::Files)
    }

    pub async fn remove_path(
        &self,
        who: &Principal,
        id: &str,
        path: &str,
        recursive: bool,
    ) -> Result<(), EngineError> {
        let sandbox = self.used_sandbox(who, id).await?;
        sandbox.remove_path(&inside(path)?, recursive).await.map_err(EngineError::Files)
    }

    pub async fn move_path(
        &self,
        who: &Principal,
        id: &str,
        path: &str,
        to: &str,
    ) -> Result<(), EngineError> {
        let sandbox = self.used_sandbox(who, id).await?;
        sandbox.move_path(&inside(path)?, &inside(to)?).await.map_err(EngineError::Files)
    }

    /// A lease of the sandbox of a live session. This counts as use of the session.
    pub(super) async fn used_sandbox(
        &self,
        who: &Principal,
        id: &str,
    ) -> Result<SandboxLease, EngineError> {
        let session = self.live_session(who, id).await?;
        let sandbox = session.awake(who.quota()).await?;
        session.used()?;
        Ok(sandbox)
    }
}

/// The absolute path in the sandbox. A relative path is below the session's directory.
pub(super) fn inside(path: &str) -> Result<Vec<u8>, EngineError> {
    if path.contains('\0') {
        return Err(EngineError::Invalid("a path has no NUL bytes".into()));
    }
    Ok(match path {
        "" => paths::SESSION.into(),
        absolute if absolute.starts_with('/') => absolute.into(),
        relative => format!("{}/{relative}", paths::SESSION).into_bytes(),
    })
}

/// Opens a file. If its directory does not exist, creates it and tries again.
async fn in_directory<T, F: Future<Output = Result<T, RuntimeError>>>(
    sandbox: &Sandbox,
    directory: &str,
    open: impl Fn() -> F,
) -> Result<T, EngineError> {
    let opened = match open().await {
        Err(RuntimeError::Refused(refusal)) if refusal.code == RefusalCode::NotFound => {
            let made = sandbox.make_directory(directory.trim_end_matches("/.").as_bytes()).await;
            made.map_err(EngineError::Files)?;
            open().await
        }
        opened => opened,
    };
    opened.map_err(EngineError::Files)
}

/// The directory of a file, and its name. Links in the directory are followed; a link at the name is replaced.
fn split(path: &[u8]) -> Result<(String, &[u8]), EngineError> {
    let no_file = || EngineError::Invalid("this is not the path of a file".into());
    let at = path.iter().rposition(|byte| *byte == b'/').ok_or_else(no_file)?;
    let (directory, name) = (&path[..at], &path[at + 1..]);
    if matches!(name, b"" | b"." | b"..") {
        return Err(no_file());
    }
    let directory = std::str::from_utf8(directory).map_err(|_| no_file())?;
    // Because of the dot, a link at the end of the path is followed.
    Ok((format!("{directory}/."), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_sandbox() {
        assert_eq!(inside("a/b").unwrap(), b"/session/a/b");
        assert_eq!(inside("/tmp/x").unwrap(), b"/tmp/x");
        assert_eq!(inside("").unwrap(), b"/session");
        assert!(inside("a\0b").is_err());
        assert_eq!(split(b"/session/a/b").unwrap(), ("/session/a/.".into(), &b"b"[..]));
        assert_eq!(split(b"/x").unwrap(), ("/.".into(), &b"x"[..]));
        for bad in [&b"/session/"[..], b"/", b"/a/..", b"/a/."] {
            assert!(split(bad).is_err());
        }
    }
}
