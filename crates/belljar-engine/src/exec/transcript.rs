//! The events of an execution so far, for any number of readers.
//!
//! A position in a transcript is one number: bytes of output count one each, every other event
//! counts one. It does not depend on how the output was cut into pieces on its way, so a reader
//! that knows its position finds it again after the connection, or the server, was lost: the
//! successor gets the same events from the guest and counts the same.
//!
//! Readers pull at their own pace. A slow reader delays no other and costs nothing; what a transcript
//! may hold is bounded by the execution's output limit.

use std::sync::{Arc, Mutex, MutexGuard};

use belljar_proto::exec::{Event, Outcome};
use belljar_proto::frame::{self, Decoder};
use belljar_runtime::link::ExecEvent;
use tokio::sync::Notify;

use crate::artifacts::Artifacts;

/// Displays, results and errors of one execution; the guest keeps less, and is not believed to.
const MAX_OTHER_BYTES: usize = 64 * 1024 * 1024;

/// Entries of one execution, twice of what a guest of ours keeps.
const MAX_ENTRIES: usize = 32 * 1024;

/// The most output that is handed to a reader at once.
const MAX_PIECE: usize = 64 * 1024;

/// The longest beginning of a character that may wait for its end.
const MAX_SPLIT: usize = 3;

#[derive(Debug)]
pub struct Transcript {
    inner: Mutex<Inner>,
    grown: Notify,
}

#[derive(Debug, Default)]
struct Inner {
    entries: Vec<Entry>,
    /// Position after the last entry.
    end: u64,
    /// Bytes that still find a place: of stdout, of stderr, of everything else.
    room: [usize; 3],
    done: bool,
}

#[derive(Debug)]
struct Entry {
    /// Position of its beginning.
    start: u64,
    event: Event,
    body: Vec<u8>,
}

impl Entry {
    fn is_output(&self) -> bool {
        matches!(self.event, Event::Stdout | Event::Stderr)
    }

    fn len(&self) -> u64 {
        if self.is_output() { self.body.len() as u64 } else { 1 }
    }
}

/// A part of a transcript, as a reader gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Where to go on reading.
    pub next: u64,
    pub event: Event,
    pub body: Vec<u8>,
}

/// The guest sent something that no guest of ours sends.
#[derive(Debug, PartialEq, Eq)]
pub struct OutOfBounds;

impl Transcript {
    #[must_use]
    pub fn new(output_limit: u64) -> Transcript {
        let output = usize::try_from(output_limit).unwrap_or(usize::MAX);
        let room = [output, output, MAX_OTHER_BYTES];
        Transcript { inner: Mutex::new(Inner { room, ..Inner::default() }), grown: Notify::new() }
    }

    /// Where the guest is to go on after the connection was lost: entry and offset in it.
    #[must_use]
    pub fn place(&self) -> (u64, u64) {
        let inner = self.lock();
        match inner.entries.last() {
            Some(last) if last.is_output() => {
                (inner.entries.len() as u64 - 1, last.body.len() as u64)
            }
            _ => (inner.entries.len() as u64, 0),
        }
    }

    /// Adds what the guest sent. What comes a second time changes nothing.
    pub fn push(&self, event: ExecEvent) -> Result<(), OutOfBounds> {
        let mut inner = self.lock();
        if inner.done {
            return Ok(());
        }
        let known = inner.entries.len() as u64;
        let bytes = event.body.len();
        let kind = match event.event {
            Event::Stdout => 0,
            Event::Stderr => 1,
            Event::Artifacts => return Err(OutOfBounds),
            _ => 2,
        };
        if event.seq < known {
            let growing = event.seq + 1 == known;
            let end = inner.end;
            let last = inner.entries.last_mut().ok_or(OutOfBounds)?;
            if !growing || !last.is_output() || event.offset < last.body.len() as u64 {
                return Ok(());
            }
            if event.offset > last.body.len() as u64 || last.event != event.event {
                return Err(OutOfBounds);
            }
            last.body.extend_from_slice(&event.body);
            inner.end = end + bytes as u64;
        } else {
            if event.seq > known || event.offset > 0 || inner.entries.len() >= MAX_ENTRIES {
                return Err(OutOfBounds);
            }
            inner.done = matches!(event.event, Event::Done(_));
            let entry = Entry { start: inner.end, event: event.event, body: event.body };
            inner.end += entry.len();
            inner.entries.push(entry);
        }
        inner.room[kind] = inner.room[kind].checked_sub(bytes).ok_or(OutOfBounds)?;
        drop(inner);
        self.grown.notify_waiters();
        Ok(())
    }

    /// Adds what became of the files that the code left: last, before the end.
    pub fn tell_artifacts(&self, artifacts: &Artifacts) {
        if artifacts.is_empty() {
            return;
        }
        // Names and numbers: this cannot fail.
        let body = serde_json::to_vec(artifacts).unwrap_or_default();
        self.add(Event::Artifacts, body);
    }

    /// Ends the transcript, unless it has an end already.
    pub fn finish(&self, outcome: Outcome) {
        self.add(Event::Done(outcome), Vec::new());
    }

    /// Adds something of our own, unless the transcript has ended.
    fn add(&self, event: Event, body: Vec<u8>) {
        let mut inner = self.lock();
        if !inner.done {
            inner.done = matches!(event, Event::Done(_));
            let start = inner.end;
            inner.entries.push(Entry { start, event, body });
            inner.end += 1;
        }
        drop(inner);
        self.grown.notify_waiters();
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn outcome(&self) -> Option<Outcome> {
        match self.lock().entries.last()?.event.clone() {
            Event::Done(outcome) => Some(outcome),
            _ => None,
        }
    }

    /// Waits for the end.
    pub async fn ended(&self) -> Outcome {
        loop {
            let grown = self.grown.notified();
            if let Some(outcome) = self.outcome() {
                return outcome;
            }
            grown.await;
        }
    }

    /// Bytes of output on both streams.
    #[must_use]
    pub fn output_bytes(&self) -> u64 {
        self.lock().entries.iter().filter(|entry| entry.is_output()).map(Entry::len).sum()
    }

    /// Bytes of everything it holds.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        self.lock().entries.iter().map(|entry| entry.body.len() as u64).sum()
    }

    /// Shows every entry from the beginning.
    pub fn for_each(&self, mut show: impl FnMut(&Event, &[u8])) {
        for entry in &self.lock().entries {
            show(&entry.event, &entry.body);
        }
    }

    /// A reader that begins at `position`.
    #[must_use]
    pub fn read_from(self: &Arc<Self>, position: u64) -> Reader {
        Reader { transcript: Arc::clone(self), position }
    }

    /// For the store; [`Transcript::decode`] reads it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let inner = self.lock();
        inner.entries.iter().flat_map(|entry| frame::encode(&entry.event, &entry.body)).collect()
    }

    /// `None` if this is not what `encode` wrote.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Transcript> {
        let mut decoder = Decoder::default();
        decoder.push(bytes);
        let mut inner = Inner::default();
        while let Some(frame) = decoder.next_frame().ok()? {
            let event: Event = frame.head().ok()?;
            inner.done = matches!(event, Event::Done(_));
            let entry = Entry { start: inner.end, event, body: frame.body };
            inner.end += entry.len();
            inner.entries.push(entry);
        }
        inner.done.then(|| Transcript { inner: Mutex::new(inner), grown: Notify::new() })
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        crate::lock(&self.inner)
    }
}

impl Inner {
    fn piece_at(&self, position: u64) -> Option<Piece> {
        let index = self.entries.partition_point(|entry| entry.start + entry.len() <= position);
        let entry = self.entries.get(index)?;
        if !entry.is_output() {
            let next = entry.start + 1;
            return Some(Piece { next, event: entry.event.clone(), body: entry.body.clone() });
        }
        let from = usize::try_from(position.saturating_sub(entry.start)).ok()?;
        // The guest begins a new entry now and then. To a reader, output of one kind is one.
        let run = self.entries[index..].iter().take_while(|next| next.event == entry.event);
        let mut rest = Vec::new();
        let mut after = index;
        for (number, part) in run.enumerate() {
            let bytes = if number == 0 { &part.body[from..] } else { &part.body[..] };
            rest.extend_from_slice(&bytes[..bytes.len().min(MAX_PIECE - rest.len())]);
            after += 1;
            if rest.len() == MAX_PIECE {
                break;
            }
        }
        let still_growing = after == self.entries.len() && !self.done;
        let whole = whole_characters(&rest, still_growing).len();
        rest.truncate(whole);
        let next = entry.start + (from + whole) as u64;
        (whole > 0).then(|| Piece { next, event: entry.event.clone(), body: rest })
    }
}

/// `bytes` without the beginning of a character whose rest is still to come. Pieces are shown as
/// text, and half a character would be shown as garbage, twice.
fn whole_characters(bytes: &[u8], more_may_come: bool) -> &[u8] {
    let is_cut = more_may_come || bytes.len() == MAX_PIECE;
    let Some(chunk) = bytes.utf8_chunks().last().filter(|_| is_cut) else { return bytes };
    let torn = chunk.invalid();
    // Only what could still become a character is kept back; the rest is garbage now and for ever.
    let could_go_on = std::str::from_utf8(torn).is_err_and(|error| error.error_len().is_none());
    if could_go_on && torn.len() <= MAX_SPLIT { &bytes[..bytes.len() - torn.len()] } else { bytes }
}

#[derive(Debug)]
pub struct Reader {
    transcript: Arc<Transcript>,
    position: u64,
}

impl Reader {
    /// The next piece, waiting for it if need be; `None` after the end.
    pub async fn next(&mut self) -> Option<Piece> {
        loop {
            let grown = self.transcript.grown.notified();
            {
                let inner = self.transcript.lock();
                if let Some(piece) = inner.piece_at(self.position) {
                    self.position = piece.next;
                    return Some(piece);
                }
                if inner.done {
                    return None;
                }
            }
            grown.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_proto::exec::{Dropped, KernelState, Status};
    use proptest::prelude::*;

    fn event(seq: u64, offset: u64, event: Event, body: &[u8]) -> ExecEvent {
        ExecEvent { seq, offset, event, body: body.to_vec() }
    }

    fn done() -> Event {
        Event::Done(Outcome {
            status: Status::Ok,
            exit_code: 0,
            reason: None,
            kernel_state: KernelState::Kept,
            execution_count: 1,
            duration_us: 5,
            dropped: Dropped::default(),
            artifacts: None,
            memory_bytes: None,
            checkpoint: None,
            no_checkpoint: None,
        })
    }

    fn pieces(transcript: &Transcript, mut position: u64) -> Vec<Piece> {
        let inner = transcript.lock();
        std::iter::from_fn(|| {
            let piece = inner.piece_at(position)?;
            position = piece.next;
            Some(piece)
        })
        .collect()
    }

    #[test]
    fn output_counts_bytes_and_everything_else_counts_one() {
        let transcript = Transcript::new(100);
        transcript.push(event(0, 0, Event::Stdout, b"ab")).unwrap();
        transcript.push(event(0, 2, Event::Stdout, b"cd")).unwrap();
        transcript.push(event(1, 0, Event::Display, b"{}")).unwrap();
        transcript.push(event(2, 0, Event::Stderr, b"e")).unwrap();
        transcript.push(event(3, 0, done(), b"")).unwrap();
        let ends: Vec<u64> = pieces(&transcript, 0).iter().map(|piece| piece.next).collect();
        assert_eq!(ends, [4, 5, 6, 7]);
        assert_eq!(pieces(&transcript, 3)[0].body, b"d");
        assert_eq!(pieces(&transcript, 7), []);
        assert_eq!(pieces(&transcript, 900), []);
    }

    #[test]
    fn what_comes_twice_after_a_reconnection_is_taken_once() {
        let transcript = Transcript::new(100);
        transcript.push(event(0, 0, Event::Stdout, b"abc")).unwrap();
        assert_eq!(transcript.place(), (0, 3));
        transcript.push(event(0, 0, Event::Stdout, b"abc")).unwrap();
        transcript.push(event(0, 3, Event::Stdout, b"d")).unwrap();
        transcript.push(event(1, 0, Event::Display, b"{}")).unwrap();
        transcript.push(event(1, 0, Event::Display, b"{}")).unwrap();
        assert_eq!(transcript.place(), (2, 0));
        assert_eq!(pieces(&transcript, 0).len(), 2);
        assert_eq!(pieces(&transcript, 0)[0].body, b"abcd");
    }

    #[test]
    fn a_guest_gone_mad_is_noticed() {
        let transcript = Transcript::new(4);
        assert_eq!(transcript.push(event(1, 0, Event::Stdout, b"a")), Err(OutOfBounds));
        assert_eq!(transcript.push(event(0, 9, Event::Stdout, b"a")), Err(OutOfBounds));
        assert_eq!(transcript.push(event(0, 0, Event::Stdout, b"abcde")), Err(OutOfBounds));
    }

    #[test]
    fn a_character_is_never_torn_unless_it_ends_so() {
        let transcript = Transcript::new(100);
        let euro = "€".as_bytes();
        transcript.push(event(0, 0, Event::Stdout, &euro[..2])).unwrap();
        assert_eq!(pieces(&transcript, 0), [], "it may go on");
        transcript.push(event(0, 2, Event::Stdout, &euro[2..])).unwrap();
        transcript.push(event(0, 3, Event::Stdout, b"\xff\xe2")).unwrap();
        assert_eq!(pieces(&transcript, 0)[0].body, b"\xe2\x82\xac\xff");
        transcript.push(event(1, 0, done(), b"")).unwrap();
        assert_eq!(pieces(&transcript, 4)[0].body, b"\xe2", "nothing follows any more");
    }

    #[test]
    fn a_character_is_not_torn_by_the_end_of_an_entry_either() {
        let transcript = Transcript::new(100);
        let euro = "€".as_bytes();
        transcript.push(event(0, 0, Event::Stdout, &euro[..1])).unwrap();
        transcript.push(event(1, 0, Event::Stdout, &euro[1..])).unwrap();
        transcript.push(event(2, 0, Event::Stderr, &euro[..2])).unwrap();
        transcript.push(event(3, 0, Event::Stdout, &euro[2..])).unwrap();
        let pieces = pieces(&transcript, 0);
        assert_eq!(pieces[0].body, euro);
        assert_eq!(pieces[1].body, &euro[..2], "what comes next is not its end");
        assert_eq!(pieces.iter().map(|piece| piece.next).collect::<Vec<_>>(), [3, 5, 6]);
    }

    #[tokio::test]
    async fn readers_wait_and_end() {
        let transcript = Arc::new(Transcript::new(100));
        let mut reader = transcript.read_from(0);
        let reading = tokio::spawn(async move {
            let mut text = Vec::new();
            while let Some(piece) = reader.next().await {
                text.extend(piece.body);
            }
            text
        });
        transcript.push(event(0, 0, Event::Stdout, b"one ")).unwrap();
        tokio::task::yield_now().await;
        transcript.push(event(0, 4, Event::Stdout, b"two")).unwrap();
        transcript.push(event(1, 0, done(), b"")).unwrap();
        assert_eq!(reading.await.unwrap(), b"one two");
        assert_eq!(transcript.ended().await.status, Status::Ok);
    }

    proptest! {
        #[test]
        fn any_cut_reads_the_same(text in ".{0,40}", cuts in prop::collection::vec(1usize..9, 0..20)) {
            let transcript = Transcript::new(1000);
            let bytes = text.as_bytes();
            let mut at = 0;
            let mut read = Vec::new();
            let mut position = 0;
            for cut in cuts.into_iter().chain([1000]) {
                let end = (at + cut).min(bytes.len());
                if end > at {
                    transcript.push(event(0, at as u64, Event::Stdout, &bytes[at..end])).unwrap();
                }
                at = end;
                for piece in pieces(&transcript, position) {
                    prop_assert!(std::str::from_utf8(&piece.body).is_ok());
                    read.extend(piece.body);
                    position = piece.next;
                }
            }
            prop_assert_eq!(&read[..], bytes);
            transcript.push(event(u64::from(!bytes.is_empty()), 0, done(), b"")).unwrap();
            let again = Transcript::decode(&transcript.encode()).unwrap();
            prop_assert_eq!(pieces(&again, 0), pieces(&transcript, 0));
        }
    }
}
