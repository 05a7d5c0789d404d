//! Receives a snapshot from a kernel: records in a pipe, which are written to files.
//!
//! ```text
//! kernel ── pipe ──▶ Pump: reads ──▶ Sink: parses, counts and writes, on a blocking thread
//! ```
//!
//! The kernel never gets a file that it could write to. So it cannot keep or fill one after the host has ended: the pipe
//! ends with its reader.
//!
//! `belljar-snapshot` (`stream.rs`) writes the records: a head of three words (kind, offset, length), then the bytes. A
//! test compares the constants of both sides.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use belljar_sys::channel;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::task::JoinHandle;

use crate::RuntimeError;

const PAGES: u64 = 1;
const INDEX: u64 = 2;
const END: u64 = 3;

const HEAD_BYTES: usize = 24;
const PAGE: u64 = 4096;

/// The size of the pipe: large enough that the two sides seldom wait for each other.
const PIPE_BYTES: usize = 256 << 10;

/// Bytes that are read ahead while earlier ones are written.
const AHEAD: usize = 1 << 20;

/// The largest offset that is accepted.
const LARGEST: u64 = 1 << 44;

/// Limits how much is written to the disk.
pub trait Meter: fmt::Debug + Send + Sync {
    /// Reserves bytes before they are written; false if that would be too many.
    fn take(&self, bytes: u64) -> bool;
}

/// A fixed number of bytes.
#[derive(Debug)]
pub struct Fixed(std::sync::atomic::AtomicU64);

impl Fixed {
    #[must_use]
    pub fn new(bytes: u64) -> Fixed {
        Fixed(bytes.into())
    }
}

impl Meter for Fixed {
    fn take(&self, bytes: u64) -> bool {
        use std::sync::atomic::Ordering::Relaxed;
        self.0.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(bytes)).is_ok()
    }
}

#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("the kernel wrote an invalid snapshot: {0}")]
    Invalid(&'static str),
    #[error("there is no room for the whole snapshot")]
    NoRoom,
    #[error(transparent)]
    Write(io::Error),
}

impl From<StreamError> for RuntimeError {
    fn from(error: StreamError) -> RuntimeError {
        match error {
            StreamError::NoRoom => RuntimeError::NoRoom,
            StreamError::Write(cause) => RuntimeError::Keep(cause),
            other => RuntimeError::MemorySnapshot(other.to_string()),
        }
    }
}

/// The files that are written, and the state of the parser.
#[derive(Debug)]
pub(crate) struct Sink {
    pages: File,
    index: File,
    meter: Arc<dyn Meter>,
    /// Pages may have gaps between them.
    sparse: bool,
    /// The beginning of a head that is not complete yet.
    head: Vec<u8>,
    record: Option<Record>,
    pages_end: u64,
    written: u64,
    has_index: bool,
    complete: bool,
}

/// The record that the next bytes belong to.
#[derive(Debug)]
struct Record {
    kind: u64,
    at: u64,
    left: u64,
}

impl Sink {
    pub(crate) fn new(pages: File, index: File, meter: Arc<dyn Meter>, sparse: bool) -> Sink {
        Sink {
            pages,
            index,
            meter,
            sparse,
            head: Vec::new(),
            record: None,
            pages_end: 0,
            written: 0,
            has_index: false,
            complete: false,
        }
    }

    /// Parses the next bytes of the stream, which may be cut anywhere.
    fn take(&mut self, mut bytes: &[u8]) -> Result<(), StreamError> {
        while !bytes.is_empty() {
            if self.complete {
                return Err(StreamError::Invalid("data after the end"));
            }
            bytes = match self.record.take() {
                Some(record) => self.take_body(record, bytes)?,
                None => self.take_head(bytes)?,
            };
        }
        Ok(())
    }

    fn take_head<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], StreamError> {
        let (now, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES - self.head.len()));
        self.head.extend_from_slice(now);
        if let Ok(head) = <[u8; HEAD_BYTES]>::try_from(self.head.as_slice()) {
            self.head.clear();
            let (words, _) = head.as_chunks::<8>();
            let [kind, at, len] = [0, 1, 2].map(|word| u64::from_ne_bytes(words[word]));
            self.begin(kind, at, len)?;
        }
        Ok(rest)
    }

    fn begin(&mut self, kind: u64, at: u64, len: u64) -> Result<(), StreamError> {
        match kind {
            PAGES if !self.has_index => {
                let whole = at.is_multiple_of(PAGE) && len.is_multiple_of(PAGE) && len > 0;
                let follows = at == self.pages_end || (self.sparse && at > self.pages_end);
                let end = at.checked_add(len).filter(|end| whole && follows && *end <= LARGEST);
                self.pages_end = end.ok_or(StreamError::Invalid("pages at an invalid offset"))?;
            }
            INDEX if !self.has_index && at == 0 && len > 0 => self.has_index = true,
            END if self.has_index && (at, len) == (0, 0) => {
                self.complete = true;
                return Ok(());
            }
            _ => return Err(StreamError::Invalid("a record in the wrong order")),
        }
        self.record = Some(Record { kind, at, left: len });
        Ok(())
    }

    fn take_body<'a>(
        &mut self,
        mut record: Record,
        bytes: &'a [u8],
    ) -> Result<&'a [u8], StreamError> {
        let len = usize::try_from(record.left).map_or(bytes.len(), |left| left.min(bytes.len()));
        let (now, rest) = bytes.split_at(len);
        if !self.meter.take(len as u64) {
            return Err(StreamError::NoRoom);
        }
        let file = if record.kind == PAGES { &self.pages } else { &self.index };
        file.write_all_at(now, record.at).map_err(StreamError::Write)?;
        if record.kind == PAGES {
            self.written += len as u64;
        }
        record.at += len as u64;
        record.left -= len as u64;
        self.record = (record.left > 0).then_some(record);
        Ok(rest)
    }
}

type Written = (Sink, Result<(), StreamError>);

/// Reads a pipe into a [`Sink`].
#[derive(Debug)]
pub(crate) struct Pump {
    pipe: pipe::Receiver,
    /// Bytes that were read and are not being written yet.
    ahead: Vec<u8>,
    /// `None` while a blocking thread writes.
    sink: Option<Sink>,
    writing: Option<JoinHandle<Written>>,
    ended: bool,
}

impl Pump {
    /// Returns also the writing end of the pipe.
    pub(crate) fn new(sink: Sink) -> io::Result<(Pump, OwnedFd)> {
        let (reader, writer) = channel::pipe(PIPE_BYTES)?;
        let pipe = pipe::Receiver::from_owned_fd(reader)?;
        let pump = Pump { pipe, ahead: Vec::new(), sink: Some(sink), writing: None, ended: false };
        Ok((pump, writer))
    }

    /// Runs until the whole snapshot is in the files; false if the pipe ends before. May be cancelled and called again.
    pub(crate) async fn run(&mut self) -> Result<bool, RuntimeError> {
        loop {
            if let Some(sink) = self.sink.take_if(|_| !self.ahead.is_empty()) {
                self.writing = Some(write(sink, std::mem::take(&mut self.ahead)));
            }
            match &self.sink {
                Some(sink) if sink.complete || self.ended => return Ok(sink.complete),
                _ => {}
            }
            let has_room = self.ahead.len() < AHEAD && !self.ended;
            if has_room {
                self.ahead.reserve(PIPE_BYTES);
            }
            tokio::select! {
                biased;
                written = join(&mut self.writing), if self.writing.is_some() => {
                    self.writing = None;
                    let (sink, outcome) = written?;
                    self.sink = Some(sink);
                    outcome?;
                }
                read = self.pipe.read_buf(&mut self.ahead), if has_room => {
                    self.ended = read.map_err(RuntimeError::Connect)? == 0;
                }
            }
        }
    }

    /// Bytes of pages that were written.
    pub(crate) fn written(&self) -> u64 {
        self.sink.as_ref().map_or(0, |sink| sink.written)
    }
}

/// Writes on a blocking thread, because it may wait for the disk.
fn write(mut sink: Sink, bytes: Vec<u8>) -> JoinHandle<Written> {
    tokio::task::spawn_blocking(move || {
        let outcome = sink.take(&bytes);
        (sink, outcome)
    })
}

async fn join(writing: &mut Option<JoinHandle<Written>>) -> Result<Written, RuntimeError> {
    match writing {
        Some(writing) => writing.await.map_err(|error| RuntimeError::Keep(io::Error::other(error))),
        None => std::future::pending().await,
    }
}

/// The writer's side, as `belljar-snapshot` compiles it.
#[cfg(test)]
#[path = "../../../belljar-snapshot/src/stream.rs"]
mod writer;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    use proptest::prelude::*;

    fn head(kind: u64, at: u64, len: u64) -> Vec<u8> {
        [kind, at, len].map(u64::to_ne_bytes).concat()
    }

    fn sink(room: u64, sparse: bool) -> Sink {
        let file = || tempfile::tempfile().unwrap();
        Sink::new(file(), file(), Arc::new(Fixed::new(room)), sparse)
    }

    fn whole() -> Vec<u8> {
        let mut stream = head(PAGES, 0, 2 * PAGE);
        stream.extend([1; 8192]);
        stream.extend(head(PAGES, 2 * PAGE, PAGE));
        stream.extend([2; 4096]);
        stream.extend(head(INDEX, 0, 5));
        stream.extend(b"index");
        stream.extend(head(END, 0, 0));
        stream
    }

    fn contents(file: &File) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(file.metadata().unwrap().len()).unwrap()];
        file.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    proptest! {
        #[test]
        fn however_it_is_cut_the_same_files_come_of_it(
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let stream = whole();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let mut sink = sink(1 << 20, false);
            for pair in cuts.windows(2) {
                prop_assert!(!sink.complete);
                sink.take(&stream[pair[0]..pair[1]]).unwrap();
            }
            prop_assert!(sink.complete);
            prop_assert_eq!(sink.written, 3 * PAGE);
            let pages = contents(&sink.pages);
            prop_assert!(pages[..8192].iter().all(|&byte| byte == 1) && pages.len() == 12288);
            prop_assert!(pages[8192..].iter().all(|&byte| byte == 2));
            prop_assert_eq!(contents(&sink.index), b"index");
        }

        /// No input causes a panic or uses more of the disk than allowed.
        #[test]
        fn whatever_comes_takes_no_more_than_its_room(
            heads in prop::collection::vec((0..5u64, any::<u64>(), 0..4u64, 0..4u64, any::<bool>()), 0..12),
            sparse in any::<bool>(),
        ) {
            let room = 5 * PAGE;
            let mut sink = sink(room, sparse);
            let mut stream = Vec::new();
            for (kind, wild, at, len, tame) in heads {
                let (at, len) = if tame { (at * PAGE, len * PAGE) } else { (wild, wild >> 3) };
                stream.extend(head(kind, at, len));
                stream.extend(vec![7; usize::try_from(len.min(3 * PAGE)).unwrap()]);
            }
            let _ = sink.take(&stream);
            use std::os::unix::fs::MetadataExt;
            let blocks = |file: &File| file.metadata().unwrap().blocks() * 512;
            prop_assert!(blocks(&sink.pages) + blocks(&sink.index) <= room + 2 * PAGE);
        }
    }

    #[test]
    fn both_sides_of_the_pipe_name_records_alike() {
        assert_eq!((PAGES, INDEX, END), (writer::PAGES, writer::INDEX, writer::END));
        assert_eq!(HEAD_BYTES, writer::HEAD_WORDS * size_of::<u64>());
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let bad = [
            vec![head(PAGES, 0, 0)],
            vec![head(PAGES, 0, 5)],
            vec![head(PAGES, 5, PAGE)],
            vec![head(PAGES, PAGE, PAGE)],
            vec![head(PAGES, u64::MAX - PAGE + 1, PAGE)],
            vec![head(PAGES, 0, u64::MAX - PAGE + 1)],
            vec![head(INDEX, 1, 5)],
            vec![head(INDEX, 0, 0)],
            vec![head(END, 0, 0)],
            vec![head(9, 0, 0)],
            vec![head(INDEX, 0, 1), b"x".to_vec(), head(INDEX, 0, 1)],
            vec![head(INDEX, 0, 1), b"x".to_vec(), head(PAGES, 0, PAGE)],
            vec![head(INDEX, 0, 1), b"x".to_vec(), head(END, 0, 1)],
            vec![whole(), b"x".to_vec()],
        ];
        for stream in bad {
            let stream = stream.concat();
            assert!(matches!(sink(1 << 20, false).take(&stream), Err(StreamError::Invalid(_))));
        }
        let far = head(PAGES, 7 * PAGE, PAGE);
        assert!(sink(1 << 20, true).take(&far).is_ok(), "room may be left where that is meant");
        assert!(sink(1 << 20, true).take(&head(PAGES, LARGEST, PAGE)).is_err());
    }

    #[test]
    fn no_byte_is_written_beyond_the_room() {
        let mut sink = sink(2 * PAGE, false);
        assert!(matches!(sink.take(&whole()), Err(StreamError::NoRoom)));
        assert_eq!(contents(&sink.pages).len() as u64, 2 * PAGE);
    }

    #[tokio::test]
    async fn a_pump_ends_when_all_is_there_and_not_before() {
        let (mut pump, writer) = Pump::new(sink(1 << 20, false)).unwrap();
        let mut writer = std::io::PipeWriter::from(writer);
        let stream = whole();
        writer.write_all(&stream[..100]).unwrap();
        let waiting = tokio::time::timeout(std::time::Duration::from_millis(20), pump.run());
        assert!(waiting.await.is_err());
        writer.write_all(&stream[100..]).unwrap();
        // The pipe need not be closed.
        assert!(pump.run().await.unwrap());
        assert_eq!(pump.written(), 3 * PAGE);

        let (mut pump, writer) = Pump::new(sink(1 << 20, false)).unwrap();
        std::io::PipeWriter::from(writer).write_all(&stream[..5000]).unwrap();
        assert!(!pump.run().await.unwrap());
    }
}
