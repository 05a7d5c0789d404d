//! Kernels as files: a Python kernel written down while it lives, and another one made of what was
//! written.
//!
//! What a kernel is made of is an index and layers of pages. A layer has only what changed since an
//! earlier index, which a new one goes on referring to: so a second picture of the same kernel is
//! small, and any number of kernels can be made of one. What all kernels have in common, because
//! they were forked from one process, is a layer that many pictures share.
//!
//! The kernel does it to itself, inside its sandbox (`crates/belljar-freeze`); we hand it the files and
//! look that it lets go of them.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::PROTOCOL_WITH_PICTURES;
use belljar_proto::exec::Language;
use belljar_proto::guest::{Answer, Call};
use belljar_proto::picture::{LineReport, ToLine};
use belljar_sys::untrusted::UntrustedFd;
use belljar_sys::{channel, process, sealed, tree};
use tokio::io::Interest;
use tokio::time::{Instant, sleep};

use crate::link::Link;
use crate::stream_thread::StreamThread;
use crate::{RuntimeError, Sandbox};

/// A gigabyte onto a slow disk.
const FREEZE_TIMEOUT: Duration = Duration::from_secs(120);
const THAW_TIMEOUT: Duration = Duration::from_secs(60);

/// How often we look at how much a kernel has written.
const LOOK_PACE: Duration = Duration::from_millis(100);

/// Closing what a process had open takes no time, but the process that had it must get its turn.
const LET_GO_TIMEOUT: Duration = Duration::from_secs(2);
const LET_GO_PACE: Duration = Duration::from_millis(1);

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
pub struct Picture {
    /// Open for reading only.
    pub index: File,
    pub layers: Vec<Layer>,
}

/// How a kernel is to be written down.
#[derive(Debug)]
pub struct Freezing<'a> {
    /// The number of the new layer, which no other layer of this owner has; less than 2^62.
    pub layer: u64,
    /// Where its pages go, and the index. Neither may exist.
    pub pages: &'a Path,
    pub index: &'a Path,
    /// An earlier picture of this kernel, or the one that it was made of.
    pub before: Option<&'a Picture>,
    /// Where layers are kept that pictures of several sandboxes share, by [`common_layer`].
    pub commons: &'a Path,
    /// No more bytes than this.
    pub most: u64,
    /// What cannot be kept (threads, connections) is left out, and reported as lost.
    pub force: bool,
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct FreezeReport {
    /// Why it was not done: what could not be kept. Empty if it was.
    pub refused: Vec<String>,
    /// What was left out.
    pub lost: Vec<String>,
    /// Bytes of pages in the new layer.
    pub bytes: u64,
    /// The layers that the index speaks of, as the kernel says: they need not exist.
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
    pub async fn freeze(&self, how: &Freezing<'_>) -> Result<FreezeReport, RuntimeError> {
        let line = self.line().await?;
        let before = how.before.filter(|picture| picture.layers.len() < MAX_LAYERS);
        let common = self.common(how.commons).await;
        // The kernel has it mapped from memory, and knows it again by that file only.
        let pages_of = |layer: &'_ Layer| match &common {
            Some(common) if common.id == layer.id => common.pages.try_clone(),
            _ => layer.pages.try_clone(),
        };
        let known = before.map_or(Ok(Vec::new()), |picture| {
            picture.layers.iter().map(pages_of).collect::<io::Result<Vec<File>>>()
        });
        let known = known.map_err(RuntimeError::Memory)?;
        let open = |path: &Path| {
            create(path).map_err(|cause| RuntimeError::Open { path: path.to_owned(), cause })
        };
        let (pages, index) = (open(how.pages)?, open(how.index)?);
        let pages_again = read_only(how.pages)?;
        let mut files = vec![pages.as_fd(), pages_again.as_fd(), index.as_fd()];
        let mut layers = Vec::new();
        match (before, &common) {
            (Some(picture), _) => {
                files.push(picture.index.as_fd());
                files.extend(known.iter().map(AsFd::as_fd));
                layers.extend(picture.layers.iter().map(|layer| layer.id));
            }
            (None, Some(common)) => {
                files.extend([common.index.as_fd(), common.pages.as_fd()]);
                layers.push(common.id);
            }
            (None, None) => {}
        }
        let order = ToLine::Freeze {
            layer: how.layer,
            before: before.is_some() || common.is_some(),
            layers,
            force: how.force,
        };
        line.send(&order, &files).await?;
        let report = tokio::select! {
            biased;
            report = line.receive(FREEZE_TIMEOUT) => report?,
            () = grown(&pages, &index, how.most) => {
                // It is not about to stop by itself.
                self.kill();
                return Err(RuntimeError::Kernel(format!("it wrote more than {} bytes", how.most)));
            }
        };
        let written = size(&pages) + size(&index);
        drop((pages, index, line));
        if report.refused.is_empty() {
            if written > how.most {
                return Err(RuntimeError::Kernel(format!("it wrote more than {} bytes", how.most)));
            }
            for path in [how.pages, how.index] {
                let_go(path).await?;
            }
        }
        let LineReport { refused, lost, bytes, layers, .. } = report;
        Ok(FreezeReport { refused: words(refused), lost: words(lost), bytes, layers })
    }

    /// Gives this sandbox, which has no kernel or a fresh one, the kernel of a picture.
    pub async fn thaw(&self, picture: &Picture) -> Result<ThawReport, RuntimeError> {
        self.must_know_pictures()?;
        let line = match self.line().await {
            Ok(line) => line,
            Err(_) => {
                self.start_kernel(Language::Python).await?;
                self.line().await?
            }
        };
        let mut files = vec![picture.index.as_fd()];
        files.extend(picture.layers.iter().map(|layer| layer.pages.as_fd()));
        let order = ToLine::Thaw { layers: picture.layers.iter().map(|layer| layer.id).collect() };
        line.send(&order, &files).await?;
        let report = line.receive(THAW_TIMEOUT).await?;
        if report.thawed {
            return Ok(ThawReport { lost: words(report.lost) });
        }
        Err(RuntimeError::Kernel(words(report.refused).join("; ")))
    }

    pub(crate) async fn line(&self) -> Result<Line, RuntimeError> {
        self.must_know_pictures()?;
        let call = Call::KernelLine { language: Language::Python };
        let reply = self.link().call(call, &[]).await?;
        match (reply.answer, reply.fds.into_iter().next()) {
            (Answer::Line, Some(line)) => Line::new(self.link(), line),
            _ => Err(RuntimeError::UnexpectedAnswer),
        }
    }

    fn must_know_pictures(&self) -> Result<(), RuntimeError> {
        match self.link().protocol() >= PROTOCOL_WITH_PICTURES {
            true => Ok(()),
            false => Err(RuntimeError::OldGuest),
        }
    }
}

/// The host's end of a line to a kernel. The guest made it, so only the sandbox's thread touches it.
#[derive(Debug)]
pub(crate) struct Line {
    thread: Arc<StreamThread>,
    socket: Arc<UntrustedFd>,
}

impl Line {
    pub(crate) fn new(link: &Link, socket: UntrustedFd) -> Result<Line, RuntimeError> {
        let thread = link.stream_thread().map_err(RuntimeError::Connect)?;
        Ok(Line { thread, socket: Arc::new(socket) })
    }

    pub(crate) async fn send(
        &self,
        order: &ToLine,
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
            let send = |socket: &Arc<UntrustedFd>| {
                channel::send_packet_now(socket.as_fd(), &bytes, &files)
            };
            let socket = channel::watched_shared(socket)?;
            let sent = socket.async_io(Interest::WRITABLE, send).await;
            // Nobody shall hold them open for writing because of us.
            drop(copies);
            sent
        };
        self.thread.run(sending).await.map_err(RuntimeError::Connect)
    }

    pub(crate) async fn receive(&self, limit: Duration) -> Result<LineReport, RuntimeError> {
        let socket = Arc::clone(&self.socket);
        let receiving = async move {
            let mut bytes = vec![0; channel::MAX_PACKET];
            let receive =
                |socket: &Arc<UntrustedFd>| channel::recv_alone(socket.as_fd(), &mut bytes);
            let socket = channel::watched_shared(socket)?;
            let (read, with_descriptors) = socket.async_io(Interest::READABLE, receive).await?;
            bytes.truncate(read);
            Ok((bytes, with_descriptors))
        };
        let (bytes, with_descriptors) = tokio::time::timeout(limit, self.thread.run(receiving))
            .await
            .map_err(|_| RuntimeError::TimedOut(limit.as_secs()))?
            .map_err(RuntimeError::Connect)?;
        if with_descriptors {
            return Err(RuntimeError::Kernel("it answered with descriptors".into()));
        }
        if bytes.is_empty() {
            return Err(RuntimeError::Kernel("it died of it".into()));
        }
        serde_json::from_slice(&bytes)
            .map_err(|error| RuntimeError::Kernel(format!("it answered with nonsense: {error}")))
    }
}

fn size(file: &File) -> u64 {
    file.metadata().map_or(0, |metadata| metadata.len())
}

/// Resolves when there is more than there may be.
async fn grown(pages: &File, index: &File, most: u64) {
    while size(pages) + size(index) <= most {
        sleep(LOOK_PACE).await;
    }
}

/// Waits until nobody can write to the file any more: other sandboxes will have it in their memory.
async fn let_go(path: &Path) -> Result<(), RuntimeError> {
    let deadline = Instant::now() + LET_GO_TIMEOUT;
    let file = read_only(path)?;
    while tree::is_being_written(&file) {
        if Instant::now() > deadline {
            let message = "it does not let go of the files that it was written to";
            return Err(RuntimeError::Kernel(message.into()));
        }
        sleep(LET_GO_PACE).await;
    }
    Ok(())
}

/// What a kernel says, within bounds.
pub(crate) fn words(words: Vec<String>) -> Vec<String> {
    let short = |word: String| word.chars().take(MAX_WORD_CHARS).collect();
    words.into_iter().take(MAX_WORDS).map(short).collect()
}
