//! Memory snapshots: saves the memory of a running Python kernel as files, and restores kernels from them.
//!
//! A snapshot has an index and layers of pages. A layer has only what changed since an earlier snapshot, whose layers the
//! new index still refers to. So a second snapshot of the same kernel is small, and any number of kernels can be restored
//! from one. Kernels that began with the same zygote share a common layer.
//!
//! The kernel saves itself, inside its sandbox (`crates/belljar-snapshot`): it writes into a pipe, and the host writes
//! the data from the pipe to files ([`stream`]). The kernel gets files for reading only. Where it could reopen them for
//! writing ([`crate::sandbox::BackendHandle::may_reopen`]), it gets sealed copies in memory.

mod stream;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_proto::PROTOCOL_WITH_SNAPSHOTS;
use belljar_proto::exec::Language;
use belljar_proto::guest::{Answer, Call};
use belljar_proto::snapshot::{SnapshotCall, SnapshotReply};
use belljar_sys::untrusted::UntrustedFd;
use belljar_sys::{channel, process, sealed};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub use stream::{Fixed, Meter};
pub(crate) use stream::{Pump, Sink};

use crate::link::Link;
use crate::stream_thread::StreamThread;
use crate::{RuntimeError, Sandbox};

/// Long enough for a gigabyte on a slow disk.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(120);
const THAW_TIMEOUT: Duration = Duration::from_secs(60);

/// A kernel closes the socket as soon as it has answered, or when the pipe is closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The most bytes of memory that a zygote may have: a Python with everything imported.
pub(crate) const COMMON_BYTES: u64 = 2 << 30;

/// A snapshot with more layers is not used as the base of a new one: a packet carries 64 files.
const MAX_LAYERS: usize = 48;

/// Limits for texts of a kernel, which user code controls.
const MAX_TEXTS: usize = 32;
const MAX_TEXT_CHARS: usize = 300;

/// A file of memory pages, with a number that its owner has chosen.
#[derive(Debug)]
pub struct MemoryLayer {
    pub id: u64,
    /// Open for reading only.
    pub pages: File,
}

/// The memory of a kernel: its index, and all layers that the index refers to.
#[derive(Debug)]
pub struct MemorySnapshot {
    /// Open for reading only.
    pub index: File,
    pub layers: Vec<MemoryLayer>,
}

/// How to save a kernel.
#[derive(Debug)]
pub struct FreezeRequest<'a> {
    /// The number of the new layer, which no other layer of this owner has; less than 2^62.
    pub layer: u64,
    /// The files for its pages and the index. Neither may exist.
    pub pages: &'a Path,
    pub index: &'a Path,
    /// An earlier snapshot of this kernel, or the one that it was restored from.
    pub before: Option<&'a MemorySnapshot>,
    /// The directory of layers that snapshots of several sandboxes share, see [`common_layer`].
    pub commons: &'a Path,
    /// Limits how much may be written.
    pub meter: Arc<dyn Meter>,
    /// Leave out what cannot be saved (threads, connections), and report it as lost.
    pub force: bool,
}

/// The result of saving a kernel.
#[derive(Debug, Clone, Default)]
pub struct FreezeReport {
    /// Why it was refused: what could not be saved. Empty on success.
    pub refused: Vec<String>,
    /// The kernel could not have been saved with `force` either.
    pub entirely: bool,
    /// What was left out.
    pub lost: Vec<String>,
    /// Bytes of pages in the new layer.
    pub bytes: u64,
    /// The layers that the index refers to: some of those that the kernel was given, and the new one.
    pub layers: Vec<u64>,
}

/// What a restored kernel lacks.
#[derive(Debug, Clone, Default)]
pub struct ThawReport {
    pub lost: Vec<String>,
}

/// The path of a layer that many snapshots share; `None` for other layers.
#[must_use]
pub fn common_layer(commons: &Path, id: u64) -> Option<PathBuf> {
    (id & COMMON != 0).then(|| commons.join(format!("{id:016x}.pages")))
}

/// Set in the numbers of layers that many snapshots share; `belljar-snapshot` has the same constant (`format.rs`).
const COMMON: u64 = 1 << 62;

/// The memory that all kernels of a zygote begin with, in sealed memory files.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) id: u64,
    pub(crate) index: File,
    pub(crate) pages: File,
}

impl Common {
    pub(crate) fn new_id() -> u64 {
        COMMON | (u64::from_ne_bytes(process::random_bytes()) >> 3)
    }

    /// Copies the pages to disk, for snapshots that refer to them.
    pub(crate) fn keep(&self, commons: &Path) -> io::Result<()> {
        std::fs::create_dir_all(commons)?;
        let Some(path) = common_layer(commons, self.id) else { return Ok(()) };
        let fresh = path.with_extension("new");
        let copied = create(&fresh)
            .and_then(|file| sealed::copy(&self.pages, &file))
            .and_then(|()| std::fs::rename(&fresh, &path));
        copied.inspect_err(|_| {
            let _ = std::fs::remove_file(&fresh);
        })
    }
}

fn create(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
}

fn read_only(path: &Path) -> Result<File, RuntimeError> {
    File::open(path).map_err(|cause| RuntimeError::Open { path: path.to_owned(), cause })
}

impl Sandbox {
    /// Saves the memory of the Python kernel, which goes on afterwards. After an error, or if it was refused, the caller
    /// removes the files.
    pub async fn freeze(&self, request: &FreezeRequest<'_>) -> Result<FreezeReport, RuntimeError> {
        let socket = self.snapshot_socket().await?;
        let share = !self.may_reopen();
        let common = self.common(request.commons).await;
        let create = |path: &Path| create(path).map_err(RuntimeError::Keep);
        let (pages, index) = (create(request.pages)?, create(request.index)?);
        let sink = Sink::new(pages, index, Arc::clone(&request.meter), false);
        let (pump, writer) = Pump::new(sink).map_err(RuntimeError::Keep)?;
        let mut layers =
            self.ask_to_freeze(&socket, request, common.as_deref(), share, writer).await?;
        layers.push(request.layer);
        let mut confirmed = false;
        let written = within(FREEZE_TIMEOUT, written(&socket, pump, share, &mut confirmed)).await;
        // A kernel with threads forks a process for this. Wait for its end, so that it is not taken for one that code
        // has left behind.
        socket.until_closed().await;
        if !confirmed && written.as_ref().map_or(true, |(reply, _)| !reply.refused.is_empty()) {
            // The kernel may still have the files open; without the confirmation it does not use them.
            for path in [request.pages, request.index] {
                let _ = File::options().write(true).open(path).and_then(|file| file.set_len(0));
            }
        }
        let (SnapshotReply { refused, entirely, lost, layers: used, .. }, bytes) = written?;
        let used = if refused.is_empty() { among(used, &layers)? } else { Vec::new() };
        Ok(FreezeReport {
            refused: bounded(refused),
            entirely,
            lost: bounded(lost),
            bytes,
            layers: used,
        })
    }

    /// Asks the kernel to write its snapshot to `writer`, and returns the layers that it may refer to.
    async fn ask_to_freeze(
        &self,
        socket: &SnapshotSocket,
        request: &FreezeRequest<'_>,
        common: Option<&Common>,
        share: bool,
        writer: OwnedFd,
    ) -> Result<Vec<u64>, RuntimeError> {
        let before = request.before.filter(|earlier| earlier.layers.len() < MAX_LAYERS);
        let mut files = Vec::new();
        let mut layers = Vec::new();
        let new_pages = if share { Some(read_only(request.pages)?) } else { None };
        files.extend(new_pages.as_ref().map(KernelFile::Plain));
        match (before, common) {
            (Some(earlier), common) => {
                files.push(KernelFile::Plain(&earlier.index));
                files.extend(earlier.layers.iter().map(|layer| match common {
                    // The kernel has this layer mapped from the memory file, and recognises only that file.
                    Some(common) if common.id == layer.id => KernelFile::Sealed(&common.pages),
                    _ => KernelFile::Plain(&layer.pages),
                }));
                layers.extend(earlier.layers.iter().map(|layer| layer.id));
            }
            (None, Some(common)) => {
                files
                    .extend([KernelFile::Sealed(&common.index), KernelFile::Sealed(&common.pages)]);
                layers.push(common.id);
            }
            (None, None) => {}
        }
        let files = self.protect(files).await?;
        let call = SnapshotCall::Freeze {
            layer: request.layer,
            share,
            before: before.is_some() || common.is_some(),
            layers: layers.clone(),
            force: request.force,
        };
        let fds: Vec<BorrowedFd<'_>> =
            [writer.as_fd()].into_iter().chain(files.iter().map(ProtectedFile::as_fd)).collect();
        // Our copy of the writing end is closed on return, so that the pipe ends with the kernel.
        socket.send(&call, &fds).await?;
        Ok(layers)
    }

    /// Restores the kernel of a snapshot in this sandbox, which has no kernel or a fresh one.
    pub async fn thaw(&self, snapshot: &MemorySnapshot) -> Result<ThawReport, RuntimeError> {
        self.must_support_snapshots()?;
        let socket = match self.snapshot_socket().await {
            Ok(socket) => socket,
            Err(_) => {
                self.start_kernel(Language::Python).await?;
                self.snapshot_socket().await?
            }
        };
        let mut files = vec![KernelFile::Plain(&snapshot.index)];
        files.extend(snapshot.layers.iter().map(|layer| KernelFile::Plain(&layer.pages)));
        if files.len() > channel::MAX_FDS {
            return Err(RuntimeError::MemorySnapshot("the snapshot has too many layers".into()));
        }
        let files = self.protect(files).await?;
        let fds: Vec<BorrowedFd<'_>> = files.iter().map(ProtectedFile::as_fd).collect();
        let layers = snapshot.layers.iter().map(|layer| layer.id).collect();
        socket.send(&SnapshotCall::Thaw { layers }, &fds).await?;
        let report = socket.receive(THAW_TIMEOUT).await?;
        if report.thawed {
            return Ok(ThawReport { lost: bounded(report.lost) });
        }
        Err(RuntimeError::MemorySnapshot(bounded(report.refused).join("; ")))
    }

    /// Prepares files for a kernel, which must not be able to write to them.
    async fn protect<'a>(
        &self,
        files: Vec<KernelFile<'a>>,
    ) -> Result<Vec<ProtectedFile<'a>>, RuntimeError> {
        let mut protected = Vec::with_capacity(files.len());
        for file in files {
            protected.push(match file {
                KernelFile::Plain(file) if self.may_reopen() => {
                    let file = file.try_clone().map_err(RuntimeError::Keep)?;
                    let copy =
                        tokio::task::spawn_blocking(move || sealed::sealed_copy(&file)).await;
                    let copy = copy.unwrap_or_else(|panic| Err(io::Error::other(panic)));
                    ProtectedFile::Copy(copy.map_err(RuntimeError::Keep)?)
                }
                KernelFile::Plain(file) | KernelFile::Sealed(file) => ProtectedFile::Original(file),
            });
        }
        Ok(protected)
    }

    /// Connects the host with the Python kernel.
    pub(crate) async fn snapshot_socket(&self) -> Result<SnapshotSocket, RuntimeError> {
        self.must_support_snapshots()?;
        let call = Call::SnapshotSocket { language: Language::Python };
        let reply = self.link().call(call, &[]).await?;
        match (reply.answer, reply.fds.into_iter().next()) {
            (Answer::SnapshotSocket, Some(socket)) => {
                SnapshotSocket::new(self.link(), socket).await
            }
            _ => Err(RuntimeError::UnexpectedAnswer),
        }
    }

    fn must_support_snapshots(&self) -> Result<(), RuntimeError> {
        match self.link().protocol() >= PROTOCOL_WITH_SNAPSHOTS {
            true => Ok(()),
            false => Err(RuntimeError::OldGuest),
        }
    }
}

/// The host's end of a socket to a kernel. The guest made it, so only the sandbox's own thread uses it.
#[derive(Debug)]
pub(crate) struct SnapshotSocket {
    thread: Arc<StreamThread>,
    /// Registered once, by the thread: a send and a receive may happen at the same time.
    socket: Arc<AsyncFd<UntrustedFd>>,
}

impl SnapshotSocket {
    pub(crate) async fn new(
        link: &Link,
        socket: UntrustedFd,
    ) -> Result<SnapshotSocket, RuntimeError> {
        let thread = link.stream_thread().map_err(RuntimeError::Connect)?;
        let watching = async move { channel::watched_untrusted(socket) };
        let socket = thread.run(watching).await.map_err(RuntimeError::Connect)?;
        Ok(SnapshotSocket { thread, socket: Arc::new(socket) })
    }

    pub(crate) async fn send(
        &self,
        call: &SnapshotCall,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), RuntimeError> {
        let bytes = serde_json::to_vec(call).expect("wire types serialize to JSON");
        self.send_bytes(bytes, files).await
    }

    pub(crate) async fn send_bytes(
        &self,
        bytes: Vec<u8>,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), RuntimeError> {
        let copies: io::Result<Vec<OwnedFd>> =
            files.iter().map(BorrowedFd::try_clone_to_owned).collect();
        let (socket, copies) = (Arc::clone(&self.socket), copies.map_err(RuntimeError::Connect)?);
        let sending = async move {
            let files: Vec<BorrowedFd<'_>> = copies.iter().map(AsFd::as_fd).collect();
            let send = |socket: &UntrustedFd| channel::send_packet_now(socket, &bytes, &files);
            let sent = socket.async_io(Interest::WRITABLE, send).await;
            // Our copies must not keep the files open.
            drop(copies);
            sent
        };
        self.thread.run(sending).await.map_err(RuntimeError::Connect)
    }

    /// Waits until the kernel has closed its end, for a limited time.
    async fn until_closed(&self) {
        let until = Instant::now() + CLOSE_TIMEOUT;
        while let Some(left) = until.checked_duration_since(Instant::now())
            && self.receive(left).await.is_ok()
        {}
    }

    pub(crate) async fn receive(&self, limit: Duration) -> Result<SnapshotReply, RuntimeError> {
        let socket = Arc::clone(&self.socket);
        let receiving = async move {
            let mut bytes = vec![0; channel::MAX_PACKET];
            let receive = |socket: &UntrustedFd| channel::recv_alone(socket, &mut bytes);
            let (read, with_descriptors) = socket.async_io(Interest::READABLE, receive).await?;
            bytes.truncate(read);
            Ok((bytes, with_descriptors))
        };
        let (bytes, with_descriptors) = tokio::time::timeout(limit, self.thread.run(receiving))
            .await
            .map_err(|_| RuntimeError::TimedOut(limit.as_secs()))?
            .map_err(RuntimeError::Connect)?;
        if with_descriptors {
            return Err(RuntimeError::MemorySnapshot(
                "the kernel answered with descriptors".into(),
            ));
        }
        if bytes.is_empty() {
            return Err(RuntimeError::MemorySnapshot("the kernel died".into()));
        }
        serde_json::from_slice(&bytes).map_err(|error| {
            RuntimeError::MemorySnapshot(format!("the kernel sent an invalid answer: {error}"))
        })
    }
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, RuntimeError>>,
) -> Result<T, RuntimeError> {
    let timed_out = |_| Err(RuntimeError::TimedOut(limit.as_secs()));
    tokio::time::timeout(limit, work).await.unwrap_or_else(timed_out)
}

/// Receives the snapshot until all of it is in the files, and returns the kernel's answer and the bytes of pages. If
/// the kernel refuses, the files may be incomplete. Sets `confirmed` when it confirms to the kernel that the files are
/// complete.
async fn written(
    socket: &SnapshotSocket,
    mut pump: Pump,
    share: bool,
    confirmed: &mut bool,
) -> Result<(SnapshotReply, u64), RuntimeError> {
    let mut receiving = pin!(socket.receive(FREEZE_TIMEOUT));
    let early = tokio::select! {
        biased;
        report = &mut receiving => Some(report?),
        whole = pump.run() => {
            // A kernel that refuses stops before the end too, and then answers.
            if whole? && share {
                *confirmed = true;
                socket.send(&SnapshotCall::Kept, &[]).await?;
            }
            None
        }
    };
    let report = match early {
        Some(report) => report,
        None => receiving.await?,
    };
    // The answer may arrive before the last bytes of the pipe are read.
    if report.refused.is_empty() && !pump.run().await? {
        return Err(RuntimeError::MemorySnapshot(
            "the kernel stopped before the end of its snapshot".into(),
        ));
    }
    Ok((report, pump.written()))
}

/// Checks the layers that a kernel refers to: each once, and only those it was given.
fn among(used: Vec<u64>, given: &[u64]) -> Result<Vec<u64>, RuntimeError> {
    let mut layers = Vec::new();
    for id in used {
        if !given.contains(&id) {
            return Err(RuntimeError::MemorySnapshot(
                "the kernel refers to layers that it was not given".into(),
            ));
        }
        if !layers.contains(&id) {
            layers.push(id);
        }
    }
    Ok(layers)
}

/// A file for a kernel.
#[derive(Clone, Copy)]
enum KernelFile<'a> {
    Plain(&'a File),
    /// Cannot be changed, even if it is reopened.
    Sealed(&'a File),
}

/// A file that a kernel cannot write to.
enum ProtectedFile<'a> {
    Original(&'a File),
    Copy(File),
}

impl ProtectedFile<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            ProtectedFile::Original(file) => file.as_fd(),
            ProtectedFile::Copy(copy) => copy.as_fd(),
        }
    }
}

/// Texts of a kernel, limited in number and length.
pub(crate) fn bounded(texts: Vec<String>) -> Vec<String> {
    let short = |text: String| text.chars().take(MAX_TEXT_CHARS).collect();
    texts.into_iter().take(MAX_TEXTS).map(short).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_names_what_it_was_given_and_each_once() {
        assert_eq!(among(vec![7, 3, 7, 7], &[3, 5, 7]).unwrap(), [7, 3]);
        assert!(among(vec![7, 4], &[3, 5, 7]).is_err());
        let many: Vec<u64> = (0..7000).map(|n| n % 3).collect();
        assert_eq!(among(many, &[0, 1, 2]).unwrap(), [0, 1, 2]);
    }
}
