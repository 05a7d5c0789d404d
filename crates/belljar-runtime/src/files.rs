//! The host's access to files of a sandbox: the guest opens them, and the host checks the descriptors.
//!
//! Code in the sandbox may change any file at any time, and the guest is not trusted: the host asks Linux what a descriptor
//! is.

use belljar_proto::PROTOCOL_WITH_FILES;
use belljar_proto::frame::FrameError;
use belljar_proto::guest::{
    Answer, Call, FileChange, FileEntry, FromGuest, Listing, MAX_REMOVED, Opening, TableFile, Tree,
    TreeFile, TreeLimits,
};
use belljar_sys::tree::Identity;
use belljar_sys::untrusted::{Untrusted, UntrustedFile};
use belljar_sys::{channel, descriptor};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::failed_to_open;
use crate::link::{Link, Reply};
use crate::remote_file::{self, FileSource, StagedFile, sources};
use crate::stream::GuestStream;
use crate::{RuntimeError, Sandbox};

/// A plain file of a sandbox, open for reading. Read no more than `size`: the file may grow.
#[derive(Debug)]
pub struct OpenedFile {
    pub file: UntrustedFile,
    pub size: u64,
    pub inode: u64,
    pub changed_ns: i64,
    pub modified_ns: i64,
    /// The guest reports that a process had it open for writing, so it may be incomplete. False if that is not known.
    pub being_written: bool,
    /// False if it was too large to be fetched: `file` has its length, and no data.
    pub has_content: bool,
}

/// The changes in a directory, as long as this value exists.
#[derive(Debug)]
pub struct FileChanges(GuestStream);

impl FileChanges {
    /// The next change; `None` when the sandbox is gone. May be cancelled without losing a change.
    pub async fn next(&mut self) -> Result<Option<FileChange>, RuntimeError> {
        match self.0.next().await? {
            Some((FromGuest::Changed(change), _)) => Ok(Some(change)),
            Some(_) => Err(RuntimeError::UnexpectedAnswer),
            None => Ok(None),
        }
    }
}

/// What to list of a directory.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Also the content of subdirectories.
    pub recursive: bool,
    /// Only entries that match this pattern, which may be deeper.
    pub glob: Option<String>,
    /// Leave out names that begin with a dot.
    pub without_hidden: bool,
}

/// The result of removing files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    pub removed: u64,
    /// The fingerprint of the artifact directory afterwards, as in [`belljar_proto::exec::Outcome`].
    pub artifacts: Option<u64>,
}

/// A file that is written under a temporary name: to be committed or discarded.
#[derive(Debug)]
#[must_use = "it stays in the sandbox under its temporary name until it is committed or discarded"]
pub struct Temporary {
    root: String,
    path: Vec<u8>,
    /// The temporary name, in the directory of the final one.
    pub(crate) name: String,
    /// Its content, if the file cannot be written directly.
    staged: Option<StagedFile>,
}

impl Temporary {
    /// Sends the content to the guest, if the file was not written directly.
    pub(crate) async fn send(&self, link: &Link) -> Result<(), RuntimeError> {
        match &self.staged {
            Some(staged) => staged.send(link, &self.path).await,
            None => Ok(()),
        }
    }
}

/// A file that is open for appending: to be closed after the last write.
#[derive(Debug)]
#[must_use = "what was written may not be in the sandbox before it is closed"]
pub struct Behind {
    path: Vec<u8>,
    /// What to append, if the file cannot be written directly.
    staged: Option<StagedFile>,
}

impl Sandbox {
    /// How many files can be opened in one call.
    pub const MAX_OPENED: usize = channel::MAX_FDS;

    /// Whether an [`belljar_proto::exec::Outcome`] without a fingerprint means that there are no artifacts. An older guest never
    /// sends one; then the directory must be listed.
    #[must_use]
    pub fn tells_artifacts(&self) -> bool {
        self.link().protocol() >= PROTOCOL_WITH_FILES
    }

    /// The plain files below a directory of the sandbox, as the guest reports them.
    pub async fn list_tree(&self, root: &str, limits: TreeLimits) -> Result<Tree, RuntimeError> {
        let call = Call::ListTree { root: root.to_owned(), limits };
        let reply = self.link().call(call, &[]).await?;
        parse(&reply.body)
    }

    /// Opens files that were listed, at most [`Sandbox::MAX_OPENED`], with one result for each. Each was checked to be a plain
    /// file and read-only, but may have been replaced since it was listed. The content of files larger than `most` may be
    /// missing.
    pub async fn open_files(
        &self,
        root: &str,
        files: &[TreeFile],
        most: u64,
    ) -> Result<Vec<Result<OpenedFile, RuntimeError>>, RuntimeError> {
        if !self.tells_artifacts() {
            return self.open_one_by_one(root, files).await;
        }
        let reply = self.call_about(Call::OpenFiles { root: root.to_owned() }, files).await?;
        let openings: Vec<Opening> = parse(&reply.body)?;
        if openings.len() != files.len() {
            return Err(RuntimeError::UnexpectedAnswer);
        }
        let mut sources = sources(reply.fds, reply.files);
        let mut all = Vec::with_capacity(files.len());
        for (opening, file) in openings.into_iter().zip(files) {
            all.push(match opening {
                Opening::Opened { being_written, .. } => {
                    self.opened(sources.next(), &file.path, being_written, most).await
                }
                Opening::Refused(refusal) => Err(refusal.into()),
            });
        }
        match sources.next() {
            Some(_) => Err(RuntimeError::UnexpectedAnswer),
            None => Ok(all),
        }
    }

    /// Like `open_files`, with a guest that opens one file at a time.
    async fn open_one_by_one(
        &self,
        root: &str,
        files: &[TreeFile],
    ) -> Result<Vec<Result<OpenedFile, RuntimeError>>, RuntimeError> {
        let mut all = Vec::with_capacity(files.len());
        for file in files {
            let call = Call::OpenFile { root: root.to_owned(), path: file.path.clone() };
            all.push(match self.link().call(call, &[]).await {
                Ok(reply) => {
                    let source = sources(reply.fds, reply.files).next();
                    self.opened(source, &file.path, false, u64::MAX).await
                }
                Err(RuntimeError::Refused(refusal)) => Err(refusal.into()),
                Err(error) => return Err(error),
            });
        }
        Ok(all)
    }

    /// Removes the files that did not change since they were listed. Directories stay.
    pub async fn remove_files(
        &self,
        root: &str,
        files: &[TreeFile],
    ) -> Result<Removed, RuntimeError> {
        self.must_know_files()?;
        let mut all = Removed { removed: 0, artifacts: None };
        // Also with nothing to remove: the answer has the fingerprint.
        let (first, rest) = files.split_at(files.len().min(MAX_REMOVED));
        for batch in std::iter::once(first).chain(rest.chunks(MAX_REMOVED)) {
            let call = Call::RemoveFiles { root: root.to_owned() };
            match self.call_about(call, batch).await?.answer {
                Answer::Removed { removed, artifacts } => {
                    all = Removed { removed: all.removed.saturating_add(removed), artifacts };
                }
                _ => return Err(RuntimeError::UnexpectedAnswer),
            }
        }
        Ok(all)
    }

    /// Begins a file below `root`, and makes its directories. It appears at `path` with [`Sandbox::commit_file`].
    ///
    /// If the sandbox's files are in memory, Linux charges what is written to this process and not to the sandbox. The
    /// sandbox's limit on files still holds.
    pub async fn create_file(
        &self,
        root: &str,
        path: &[u8],
    ) -> Result<(UntrustedFile, Temporary), RuntimeError> {
        self.create_file_with(root, path, None).await
    }

    /// Like `create_file`, with these permissions.
    pub async fn create_file_with(
        &self,
        root: &str,
        path: &[u8],
        mode: Option<u32>,
    ) -> Result<(UntrustedFile, Temporary), RuntimeError> {
        match mode {
            Some(_) => self.must_know_jobs()?,
            None => self.must_know_files()?,
        }
        let (root, path) = (root.to_owned(), path.to_vec());
        let call = Call::CreateFile { root: root.clone(), path: path.clone(), mode };
        let reply = self.link().call(call, &[]).await?;
        let (Answer::Created { temporary: name }, Some(source)) =
            (reply.answer, sources(reply.fds, reply.files).next())
        else {
            return Err(RuntimeError::UnexpectedAnswer);
        };
        let (file, staged) = to_write(self.link(), source, &path)?;
        Ok((file, Temporary { root, path, name, staged }))
    }

    /// Renames the file to its final name, also over another one, and returns the resulting file as the guest sees it.
    /// If the guest refuses, the temporary file still exists.
    pub async fn commit_file(&self, temporary: &Temporary) -> Result<TreeFile, RuntimeError> {
        let Temporary { root, path, name, .. } = temporary;
        temporary.send(self.link()).await?;
        let call =
            Call::CommitFile { root: root.clone(), path: path.clone(), temporary: name.clone() };
        match self.link().call(call, &[]).await?.answer {
            Answer::Committed(file) => Ok(TreeFile { path: path.clone(), ..file }),
            _ => Err(RuntimeError::UnexpectedAnswer),
        }
    }

    /// Removes the temporary file.
    pub async fn discard_file(&self, temporary: Temporary) -> Result<(), RuntimeError> {
        let Temporary { root, path, name, staged } = temporary;
        if let Some(StagedFile { number, .. }) = staged {
            self.link().call(Call::CloseTableFiles { files: vec![number] }, &[]).await?;
        }
        let call = Call::DiscardFile { root, path, temporary: name };
        self.link().call(call, &[]).await.map(|_| ())
    }

    /// Describes what is at a path, without following a link at its end.
    pub async fn look(&self, path: &[u8]) -> Result<FileEntry, RuntimeError> {
        self.must_know_files()?;
        match self.link().call(Call::Look { path: path.to_vec() }, &[]).await?.answer {
            Answer::Entry(entry) => Ok(entry),
            _ => Err(RuntimeError::UnexpectedAnswer),
        }
    }

    pub async fn list_directory(
        &self,
        path: &[u8],
        wanted: &Wanted,
        limits: TreeLimits,
    ) -> Result<Listing, RuntimeError> {
        let Wanted { recursive, glob, without_hidden } = wanted.clone();
        match glob.is_some() || without_hidden {
            true => self.must_know_jobs()?,
            false => self.must_know_files()?,
        }
        let path = path.to_vec();
        let call = Call::ListDirectory { path, recursive, limits, glob, without_hidden };
        parse(&self.link().call(call, &[]).await?.body)
    }

    /// Opens a file with the rights of a program inside, following links. The descriptor is checked.
    pub async fn open_path(&self, path: &[u8]) -> Result<OpenedFile, RuntimeError> {
        self.must_know_files()?;
        let reply = self.link().call(Call::OpenPath { path: path.to_vec() }, &[]).await?;
        self.opened(sources(reply.fds, reply.files).next(), path, false, u64::MAX).await
    }

    /// Opens a plain file for appending, and creates it if there is none.
    pub async fn append_file(
        &self,
        path: &[u8],
        mode: u32,
    ) -> Result<(UntrustedFile, Behind), RuntimeError> {
        self.must_know_jobs()?;
        let path = path.to_vec();
        let reply = self.link().call(Call::AppendFile { path: path.clone(), mode }, &[]).await?;
        let source =
            sources(reply.fds, reply.files).next().ok_or(RuntimeError::UnexpectedAnswer)?;
        let (file, staged) = to_write(self.link(), source, &path)?;
        Ok((file, Behind { path, staged }))
    }

    /// Completes a file that was opened for appending.
    pub async fn close_file(&self, behind: Behind) -> Result<(), RuntimeError> {
        let Behind { path, staged } = behind;
        match staged {
            // The guest opened it for appending: every write goes to its end.
            Some(staged) => staged.send(self.link(), &path).await,
            None => Ok(()),
        }
    }

    /// Begins to watch a directory.
    pub async fn watch_files(
        &self,
        path: &[u8],
        recursive: bool,
    ) -> Result<FileChanges, RuntimeError> {
        self.must_know_jobs()?;
        let call = Call::WatchFiles { path: path.to_vec(), recursive };
        match GuestStream::open(self.link(), call).await? {
            (Answer::Started, stream) => Ok(FileChanges(stream)),
            _ => Err(RuntimeError::UnexpectedAnswer),
        }
    }

    /// Creates a directory and its parents.
    pub async fn make_directory(&self, path: &[u8]) -> Result<(), RuntimeError> {
        self.do_with_file(Call::MakeDirectory { path: path.to_vec() }).await
    }

    pub async fn remove_path(&self, path: &[u8], recursive: bool) -> Result<(), RuntimeError> {
        self.do_with_file(Call::RemovePath { path: path.to_vec(), recursive }).await
    }

    pub async fn move_path(&self, path: &[u8], to: &[u8]) -> Result<(), RuntimeError> {
        self.do_with_file(Call::MovePath { path: path.to_vec(), to: to.to_vec() }).await
    }

    async fn do_with_file(&self, call: Call) -> Result<(), RuntimeError> {
        self.must_know_files()?;
        self.link().call(call, &[]).await.map(|_| ())
    }

    /// Refuses calls that an older guest does not know: it would close the connection.
    fn must_know_files(&self) -> Result<(), RuntimeError> {
        if self.tells_artifacts() { Ok(()) } else { Err(RuntimeError::OldGuest) }
    }

    /// Checks a file that the guest has opened.
    async fn opened(
        &self,
        source: Option<FileSource>,
        path: &[u8],
        being_written: bool,
        most: u64,
    ) -> Result<OpenedFile, RuntimeError> {
        let (file, identity, has_content) = match source.ok_or(RuntimeError::UnexpectedAnswer)? {
            FileSource::Local(fd) => {
                let identity = descriptor::check_plain_file(&fd);
                (fd.into_file(), identity.map_err(|cause| failed_to_open(path, cause))?, true)
            }
            FileSource::Remote(remote) => {
                let TableFile { size, inode, changed_ns, modified_ns, .. } = remote;
                let file = remote_file::fetch(self.link(), remote, path, most).await?;
                let file = Untrusted::new(file, self.link().closer());
                (file, Identity { size, inode, changed_ns, modified_ns }, size <= most)
            }
        };
        let Identity { size, inode, changed_ns, modified_ns } = identity;
        let seen =
            OpenedFile { file, size, inode, changed_ns, modified_ns, being_written, has_content };
        Ok(seen)
    }

    async fn call_about(
        &self,
        call: Call,
        files: &[impl Serialize],
    ) -> Result<Reply, RuntimeError> {
        let body = serde_json::to_vec(files);
        let body = body.map_err(|error| RuntimeError::Nonsense(FrameError::Head(error)))?;
        self.link().call(call, &body).await
    }
}

/// The file to write to, for a file that the guest opened for writing.
fn to_write(
    link: &Link,
    source: FileSource,
    path: &[u8],
) -> Result<(UntrustedFile, Option<StagedFile>), RuntimeError> {
    let failed = |cause| failed_to_open(path, cause);
    match source {
        FileSource::Local(fd) => {
            descriptor::check_written_file(&fd).map_err(failed)?;
            Ok((fd.into_file(), None))
        }
        FileSource::Remote(TableFile { number, .. }) => {
            let staged = StagedFile::new(number).map_err(failed)?;
            let file = staged.file.try_clone().map_err(failed)?;
            Ok((Untrusted::new(file, link.closer()), Some(staged)))
        }
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, RuntimeError> {
    serde_json::from_slice(body).map_err(|error| RuntimeError::Nonsense(FrameError::Head(error)))
}
