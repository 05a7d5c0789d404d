//! Kernels as files: a Python kernel written down while it lives, and another one made of what was
//! written.
//!
//! What a kernel is made of is an index and layers of pages. A layer has only what changed since an
//! earlier index, which a new one goes on referring to: so a second picture of the same kernel is
//! small, and any number of kernels can be made of one. What all kernels have in common, because
//! they began with the memory of one process, is a layer that many pictures share.
//!
//! The kernel does it to itself, inside its sandbox (`crates/belljar-freeze`): it writes into a pipe, and
//! we put what comes into files ([`stream`]). It gets files for reading only, and where it could open
//! those again for writing ([`crate::sandbox::BackendHandle::may_reopen`]), copies in memory that nobody can change.

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

/// A gigabyte onto a slow disk.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(120);
const THAW_TIMEOUT: Duration = Duration::from_secs(60);

/// A kernel hangs up at once when it has answered, or when nobody reads what it writes.
const HANG_UP_TIMEOUT: Duration = Duration::from_secs(2);

/// What kernels of one image may have in common, in bytes: a Python with everything imported.
pub(crate) const COMMON_BYTES: u64 = 2 << 30;

/// A picture that speaks of more than this is not gone on from: a packet carries 64 files.
const MAX_LAYERS: usize = 48;

/// Words and reasons of a kernel, which is the user's.
const MAX_WORDS: usize = 32;
const MAX_WORD_CHARS: usize = 300;

/// Pages of memory in a file, by a number that whoever keeps it has chosen.
#[derive(Debug)]
pub struct Layer {
    pub id: u64,
    /// Open for reading only.
    pub pages: File,
}

/// A kernel that was written down: its index, and all layers that it speaks of.
#[derive(Debug)]
pub struct MemorySnapshot {
    /// Open for reading only.
    pub index: File,
    pub layers: Vec<Layer>,
}

/// How a kernel is to be written down.
#[derive(Debug)]
pub struct FreezeRequest<'a> {
    /// The number of the new layer, which no other layer of this owner has; less than 2^62.
    pub layer: u64,
    /// Where its pages go, and the index. Neither may exist.
    pub pages: &'a Path,
    pub index: &'a Path,
    /// An earlier picture of this kernel, or the one that it was made of.
    pub before: Option<&'a MemorySnapshot>,
    /// Where layers are kept that pictures of several sandboxes share, by [`common_layer`].
    pub commons: &'a Path,
    /// Says how much may be written.
    pub meter: Arc<dyn Meter>,
    /// What cannot be kept (threads, connections) is left out, and reported as lost.
    pub force: bool,
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct FreezeReport {
    /// Why it was not done: what could not be kept. Empty if it was.
    pub refused: Vec<String>,
    /// With `force` the kernel could not have been kept either.
    pub entirely: bool,
    /// What was left out.
    pub lost: Vec<String>,
    /// Bytes of pages in the new layer.
    pub bytes: u64,
    /// The layers that the index speaks of: some of those that the kernel was given, and the new one.
    pub layers: Vec<u64>,
}

/// What a kernel that was made of a picture lacks.
#[derive(Debug, Clone, Default)]
pub struct ThawReport {
    pub lost: Vec<String>,
}

/// Whether a layer is one that many share, and where it is kept.
#[must_use]
pub fn common_layer(commons: &Path, id: u64) -> Option<PathBuf> {
    (id & COMMON != 0).then(|| commons.join(format!("{id:016x}.pages")))
}

/// Set in the numbers of layers that many share; the shared object knows it too.
const COMMON: u64 = 1 << 62;

/// What all kernels of a zygote begin with: files in memory that are sealed.
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

    /// Copies the pages to disk, where they are for as long as somebody keeps pictures that speak of them.
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
    /// Writes the Python kernel down, which goes on afterwards. What is left of the files after an error, or if it
    /// was refused, is the caller's to remove.
    pub async fn freeze(&self, how: &FreezeRequest<'_>) -> Result<FreezeReport, RuntimeError> {
        let line = self.line().await?;
        let share = !self.may_reopen();
        let before = how.before.filter(|picture| picture.layers.len() < MAX_LAYERS);
        let common = self.common(how.commons).await;
        let open = |path: &Path| create(path).map_err(RuntimeError::Keep);
        let (pages, index) = (open(how.pages)?, open(how.index)?);
        let sink = Sink::new(pages, index, Arc::clone(&how.meter), false);
        let (pump, theirs) = Pump::new(sink).map_err(RuntimeError::Keep)?;
        let mut given = Vec::new();
        let mut layers = Vec::new();
        let new_pages = if share { Some(read_only(how.pages)?) } else { None };
        given.extend(new_pages.as_ref().map(Given::Plain));
        match (before, &common) {
            (Some(picture), common) => {
                given.push(Given::Plain(&picture.index));
                given.extend(picture.layers.iter().map(|layer| match common {
                    // The kernel has it mapped from memory, and knows it again by that file only.
                    Some(common) if common.id == layer.id => Given::Sealed(&common.pages),
                    _ => Given::Plain(&layer.pages),
                }));
                layers.extend(picture.layers.iter().map(|layer| layer.id));
            }
            (None, Some(common)) => {
                given.extend([Given::Sealed(&common.index), Given::Sealed(&common.pages)]);
                layers.push(common.id);
            }
            (None, None) => {}
        }
        let lent = self.lend(given).await?;
        let order = SnapshotCall::Freeze {
            layer: how.layer,
            share,
            before: before.is_some() || common.is_some(),
            layers: layers.clone(),
            force: how.force,
        };
        let files: Vec<BorrowedFd<'_>> =
            [theirs.as_fd()].into_iter().chain(lent.iter().map(Lent::as_fd)).collect();
        line.send(&order, &files).await?;
        // Ours must not be the one that keeps the pipe open.
        drop(files);
        drop((lent, theirs));
        layers.push(how.layer);
        let mut told = false;
        let written = within(FREEZE_TIMEOUT, written(&line, pump, share, &mut told)).await;
        // By then the process has ended that a kernel with threads forks for this, which would otherwise be taken for one
        // that code has left behind.
        line.until_hung_up().await;
        if !told && written.as_ref().map_or(true, |(report, _)| !report.refused.is_empty()) {
            // It may still have them open, and until it has heard that they are whole it has no use for them.
            for path in [how.pages, how.index] {
                let _ = File::options().write(true).open(path).and_then(|file| file.set_len(0));
            }
        }
        let written = written?;
        let (SnapshotReply { refused, entirely, lost, layers: used, .. }, bytes) = written;
        let used = if refused.is_empty() { among(used, &layers)? } else { Vec::new() };
        Ok(FreezeReport {
            refused: words(refused),
            entirely,
            lost: words(lost),
            bytes,
            layers: used,
        })
    }

    /// Gives this sandbox, which has no kernel or a fresh one, the kernel of a picture.
    pub async fn thaw(&self, picture: &MemorySnapshot) -> Result<ThawReport, RuntimeError> {
        self.must_support_snapshots()?;
        let line = match self.line().await {
            Ok(line) => line,
            Err(_) => {
                self.start_kernel(Language::Python).await?;
                self.line().await?
            }
        };
        let mut given = vec![Given::Plain(&picture.index)];
        given.extend(picture.layers.iter().map(|layer| Given::Plain(&layer.pages)));
        if given.len() > channel::MAX_FDS {
            return Err(RuntimeError::MemorySnapshot("it consists of too many layers".into()));
        }
        let lent = self.lend(given).await?;
        let files: Vec<BorrowedFd<'_>> = lent.iter().map(Lent::as_fd).collect();
        let order =
            SnapshotCall::Thaw { layers: picture.layers.iter().map(|layer| layer.id).collect() };
        line.send(&order, &files).await?;
        let report = line.receive(THAW_TIMEOUT).await?;
        if report.thawed {
            return Ok(ThawReport { lost: words(report.lost) });
        }
        Err(RuntimeError::MemorySnapshot(words(report.refused).join("; ")))
    }

    /// Files as a kernel may have them: nobody can write to them through what it gets.
    async fn lend<'a>(&self, files: Vec<Given<'a>>) -> Result<Vec<Lent<'a>>, RuntimeError> {
        let mut lent = Vec::with_capacity(files.len());
        for file in files {
            lent.push(match file {
                Given::Plain(file) if self.may_reopen() => {
                    let file = file.try_clone().map_err(RuntimeError::Keep)?;
                    let copy =
                        tokio::task::spawn_blocking(move || sealed::sealed_copy(&file)).await;
                    let copy = copy.unwrap_or_else(|panic| Err(io::Error::other(panic)));
                    Lent::Copy(copy.map_err(RuntimeError::Keep)?)
                }
                Given::Plain(file) | Given::Sealed(file) => Lent::Itself(file),
            });
        }
        Ok(lent)
    }

    pub(crate) async fn line(&self) -> Result<Line, RuntimeError> {
        self.must_support_snapshots()?;
        let call = Call::SnapshotSocket { language: Language::Python };
        let reply = self.link().call(call, &[]).await?;
        match (reply.answer, reply.fds.into_iter().next()) {
            (Answer::SnapshotSocket, Some(line)) => Line::new(self.link(), line).await,
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

/// The host's end of a line to a kernel. The guest made it, so only the sandbox's thread touches it.
#[derive(Debug)]
pub(crate) struct Line {
    thread: Arc<StreamThread>,
    /// Watched once, by the thread: something may be awaited while something else is sent.
    socket: Arc<AsyncFd<UntrustedFd>>,
}

impl Line {
    pub(crate) async fn new(link: &Link, socket: UntrustedFd) -> Result<Line, RuntimeError> {
        let thread = link.stream_thread().map_err(RuntimeError::Connect)?;
        let watching = async move { channel::watched_untrusted(socket) };
        let socket = thread.run(watching).await.map_err(RuntimeError::Connect)?;
        Ok(Line { thread, socket: Arc::new(socket) })
    }

    pub(crate) async fn send(
        &self,
        order: &SnapshotCall,
        files: &[BorrowedFd<'_>],
    ) -> Result<(), RuntimeError> {
        let bytes = serde_json::to_vec(order).expect("wire types serialize to JSON");
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
            // Nobody shall hold them open for writing because of us.
            drop(copies);
            sent
        };
        self.thread.run(sending).await.map_err(RuntimeError::Connect)
    }

    /// Waits until the kernel has let go of it, or should have.
    async fn until_hung_up(&self) {
        let until = Instant::now() + HANG_UP_TIMEOUT;
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
            return Err(RuntimeError::MemorySnapshot("it answered with descriptors".into()));
        }
        if bytes.is_empty() {
            return Err(RuntimeError::MemorySnapshot("it died of it".into()));
        }
        serde_json::from_slice(&bytes).map_err(|error| {
            RuntimeError::MemorySnapshot(format!("it answered with nonsense: {error}"))
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

/// What a kernel that writes itself down says of it, when everything is in the files; and how many
/// bytes of pages that are. If it refuses, whatever came of it. `told` when it may use them.
async fn written(
    line: &Line,
    mut pump: Pump,
    share: bool,
    told: &mut bool,
) -> Result<(SnapshotReply, u64), RuntimeError> {
    let mut receiving = pin!(line.receive(FREEZE_TIMEOUT));
    let early = tokio::select! {
        biased;
        report = &mut receiving => Some(report?),
        whole = pump.run() => {
            // One that refuses stops before the end too, and then says why.
            if whole? && share {
                *told = true;
                line.send(&SnapshotCall::Kept, &[]).await?;
            }
            None
        }
    };
    let report = match early {
        Some(report) => report,
        None => receiving.await?,
    };
    // It may have said that it is done before we had read the last of it.
    if report.refused.is_empty() && !pump.run().await? {
        return Err(RuntimeError::MemorySnapshot("it stopped before the end".into()));
    }
    Ok((report, pump.written()))
}

/// The layers that a kernel says it needs: each once, and only what it was given.
fn among(used: Vec<u64>, given: &[u64]) -> Result<Vec<u64>, RuntimeError> {
    let mut layers = Vec::new();
    for id in used {
        if !given.contains(&id) {
            return Err(RuntimeError::MemorySnapshot(
                "it speaks of layers that it was not given".into(),
            ));
        }
        if !layers.contains(&id) {
            layers.push(id);
        }
    }
    Ok(layers)
}

/// A file that a kernel is to have.
#[derive(Clone, Copy)]
enum Given<'a> {
    Plain(&'a File),
    /// Nobody can change it, whoever opens it again.
    Sealed(&'a File),
}

/// A file that is sent to a kernel.
enum Lent<'a> {
    Itself(&'a File),
    Copy(File),
}

impl Lent<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Lent::Itself(file) => file.as_fd(),
            Lent::Copy(copy) => copy.as_fd(),
        }
    }
}

/// What a kernel says, within bounds.
pub(crate) fn words(words: Vec<String>) -> Vec<String> {
    let short = |word: String| word.chars().take(MAX_WORD_CHARS).collect();
    words.into_iter().take(MAX_WORDS).map(short).collect()
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
