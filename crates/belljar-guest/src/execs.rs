//! Executions and their spools: the events of each, kept until the host has fetched them.
//!
//! The spool of an execution is a list of entries. Consecutive output of one stream grows the last
//! entry instead of adding one, so a reader's position is a pair: entry number and offset within it.
//! Readers pull at their own pace; a slow or lost reader delays no one else and costs no more memory
//! than the bounds below allow.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::time::Instant;

use belljar_proto::exec::{ARTIFACTS, Dropped, Event, ExecSpec, KernelState, Outcome, Status};
use belljar_proto::guest::KnownExec;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::{Notify, watch};

use crate::input::Input;

/// Finished executions that are kept if the host never sends `Forget`.
const MAX_FINISHED: usize = 64;

/// The most bytes of displays and results of one execution, together.
const MAX_RESULT_BYTES: usize = 32 * 1024 * 1024;

/// The most entries of one execution. Only displays, and output that alternates between the streams,
/// add many.
const MAX_ENTRIES: usize = 16 * 1024;

/// An entry of output grows to this size before a new one is begun.
const ENTRY_SIZE: usize = 64 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) id: String,
    started: Instant,
    entries: RefCell<Vec<(Event, Vec<u8>)>>,
    grown: Notify,
    done: Cell<bool>,
    output_left: [Cell<u64>; 2],
    dropped: Cell<Dropped>,
    results_left: Cell<usize>,
    pub(crate) input: Input,
    /// Set when the host asks for an interrupt; the supervisor of this execution acts on it.
    pub(crate) interrupt: watch::Sender<bool>,
}

impl Exec {
    fn new(id: String, output_limit: u64, takes_input: bool) -> Exec {
        Exec {
            id,
            started: Instant::now(),
            entries: RefCell::default(),
            grown: Notify::new(),
            done: Cell::new(false),
            output_left: [Cell::new(output_limit), Cell::new(output_limit)],
            dropped: Cell::default(),
            results_left: Cell::new(MAX_RESULT_BYTES),
            input: Input::new(takes_input),
            interrupt: watch::Sender::new(false),
        }
    }

    /// Adds output, and keeps as much of it as the limit allows.
    pub(crate) fn output(&self, stream: Stream, bytes: &[u8]) {
        if self.done.get() {
            return;
        }
        let (event, left) = match stream {
            Stream::Stdout => (Event::Stdout, &self.output_left[0]),
            Stream::Stderr => (Event::Stderr, &self.output_left[1]),
        };
        let room = usize::try_from(left.get()).unwrap_or(usize::MAX).min(bytes.len());
        let kept = self.keep(event, &bytes[..room]);
        left.set(left.get() - kept as u64);
        self.count_dropped(stream, (bytes.len() - kept) as u64);
    }

    /// Counts output that is not kept.
    pub(crate) fn count_dropped(&self, stream: Stream, bytes: u64) {
        let mut dropped = self.dropped.get();
        match stream {
            Stream::Stdout => dropped.stdout_bytes += bytes,
            Stream::Stderr => dropped.stderr_bytes += bytes,
        }
        self.dropped.set(dropped);
    }

    /// Appends to the last entry or begins a new one; returns how many bytes were kept.
    fn keep(&self, event: Event, bytes: &[u8]) -> usize {
        if bytes.is_empty() {
            return 0;
        }
        let mut entries = self.entries.borrow_mut();
        let full = entries.len() >= MAX_ENTRIES;
        match entries.last_mut() {
            Some((last, body)) if *last == event && body.len() < ENTRY_SIZE => {
                body.extend_from_slice(bytes);
            }
            _ if full => return 0,
            _ => entries.push((event, bytes.to_vec())),
        }
        self.grown.notify_waiters();
        bytes.len()
    }

    /// Adds a display, result or error report.
    pub(crate) fn publish(&self, event: Event, body: Vec<u8>) {
        if self.done.get() {
            return;
        }
        let mut entries = self.entries.borrow_mut();
        let Some(left) =
            self.results_left.get().checked_sub(body.len()).filter(|_| entries.len() < MAX_ENTRIES)
        else {
            let mut dropped = self.dropped.get();
            dropped.results += 1;
            self.dropped.set(dropped);
            return;
        };
        self.results_left.set(left);
        entries.push((event, body));
        self.grown.notify_waiters();
    }

    /// Records the end. Later calls have no effect.
    pub(crate) fn finish(&self, end: Ending) {
        if self.done.replace(true) {
            return;
        }
        let duration = self.started.elapsed();
        self.entries.borrow_mut().push((
            Event::Done(Outcome {
                status: end.status,
                exit_code: end.exit_code,
                reason: end.reason,
                kernel_state: end.kernel_state,
                execution_count: end.execution_count,
                duration_us: u64::try_from(duration.as_micros()).unwrap_or(u64::MAX),
                dropped: self.dropped.get(),
                artifacts: belljar_sys::tree::fingerprint(ARTIFACTS),
                memory_bytes: None,
                checkpoint: None,
                no_checkpoint: None,
            }),
            Vec::new(),
        ));
        self.input.shut();
        self.grown.notify_waiters();
    }

    /// Writes the input to a pipe until the pipe, the input or the execution ends.
    pub(crate) async fn pump_input(self: Rc<Self>, mut pipe: pipe::Sender) {
        let write = async {
            while let Some(piece) = self.input.piece().await {
                if pipe.write_all(&piece).await.is_err() {
                    // The reader closed its end: more input would never be read.
                    self.input.shut();
                    return;
                }
            }
        };
        tokio::select! {
            () = write => {}
            () = self.over() => {}
        }
    }

    /// Resolves when the execution has ended.
    pub(crate) async fn over(&self) {
        loop {
            let grown = self.grown.notified();
            if self.done.get() {
                return;
            }
            grown.await;
        }
    }

    /// Whether there is no event with this number, and there will be none.
    pub(crate) fn is_over_before(&self, entry: u64) -> bool {
        self.done.get() && entry >= self.entries.borrow().len() as u64
    }

    /// Waits for the next event after `position`, returns it and moves `position` past it. `None` after
    /// the end.
    pub(crate) async fn next(
        &self,
        position: &mut SpoolPosition,
    ) -> Option<(SpoolPosition, Event, Vec<u8>)> {
        loop {
            let grown = self.grown.notified();
            if let Some(found) = self.look(position) {
                return Some(found);
            }
            if self.is_over_before(position.entry) {
                return None;
            }
            grown.await;
        }
    }

    fn look(&self, position: &mut SpoolPosition) -> Option<(SpoolPosition, Event, Vec<u8>)> {
        let entries = self.entries.borrow();
        loop {
            let index = usize::try_from(position.entry).ok()?;
            let (event, body) = entries.get(index)?;
            let offset = usize::try_from(position.offset).ok()?;
            let grows = matches!(event, Event::Stdout | Event::Stderr);
            if grows && offset >= body.len() {
                // The reader has all of this entry so far: go on only if a later entry exists.
                entries.get(index + 1)?;
                *position = SpoolPosition { entry: position.entry + 1, offset: 0 };
                continue;
            }
            let from = *position;
            *position = if grows {
                SpoolPosition { offset: body.len() as u64, ..from }
            } else {
                SpoolPosition { entry: from.entry + 1, offset: 0 }
            };
            return Some((from, event.clone(), body[offset.min(body.len())..].to_vec()));
        }
    }
}

/// The position of a reader: it has read all entries before `entry`, and `offset` bytes of that one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SpoolPosition {
    pub(crate) entry: u64,
    pub(crate) offset: u64,
}

/// How an execution ended, as its supervisor saw it.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) status: Status,
    pub(crate) exit_code: i32,
    pub(crate) reason: Option<String>,
    pub(crate) kernel_state: KernelState,
    pub(crate) execution_count: u64,
}

/// All executions the guest remembers.
#[derive(Debug, Default)]
pub(crate) struct Execs {
    by_id: RefCell<HashMap<String, Rc<Exec>>>,
    /// In the order in which they began, to forget the oldest finished ones first.
    order: RefCell<VecDeque<String>>,
}

impl Execs {
    /// `None` if the id was used already.
    pub(crate) fn begin(&self, spec: &ExecSpec) -> Option<Rc<Exec>> {
        let id = spec.exec_id.as_str();
        let mut by_id = self.by_id.borrow_mut();
        if by_id.contains_key(id) {
            return None;
        }
        let exec = Rc::new(Exec::new(id.to_owned(), spec.output_limit, spec.stdin));
        by_id.insert(id.to_owned(), Rc::clone(&exec));
        let mut order = self.order.borrow_mut();
        order.push_back(id.to_owned());
        while order.len() > MAX_FINISHED {
            let finished = order.iter().position(|id| by_id.get(id).is_none_or(|e| e.done.get()));
            let Some(oldest) = finished.and_then(|at| order.remove(at)) else {
                break;
            };
            by_id.remove(&oldest);
        }
        Some(exec)
    }

    pub(crate) fn get(&self, id: &str) -> Option<Rc<Exec>> {
        self.by_id.borrow().get(id).cloned()
    }

    /// Forgets an execution that has ended. One that runs stays.
    pub(crate) fn forget(&self, id: &str) {
        let mut by_id = self.by_id.borrow_mut();
        if by_id.get(id).is_some_and(|exec| exec.done.get()) {
            by_id.remove(id);
            self.order.borrow_mut().retain(|known| known != id);
        }
    }

    /// Removes an execution that failed to start.
    pub(crate) fn discard(&self, id: &str) {
        self.by_id.borrow_mut().remove(id);
        self.order.borrow_mut().retain(|known| known != id);
    }

    /// The executions, for a host that connects again.
    pub(crate) fn known(&self) -> Vec<KnownExec> {
        let by_id = self.by_id.borrow();
        let known = |id: &String| {
            let running = !by_id.get(id)?.done.get();
            Some(KnownExec { exec_id: id.clone(), running })
        };
        self.order.borrow().iter().filter_map(known).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_proto::exec::What;

    fn all(exec: &Exec) -> Vec<(SpoolPosition, Event, Vec<u8>)> {
        let mut position = SpoolPosition::default();
        std::iter::from_fn(|| exec.look(&mut position)).collect()
    }

    fn spec(id: &str) -> ExecSpec {
        ExecSpec {
            exec_id: id.to_owned(),
            what: What::Command { argv: Vec::new(), cwd: String::new() },
            env: Vec::new(),
            timeout_ms: 1,
            grace_ms: 1,
            output_limit: 1,
            stdin: false,
            script: None,
            merge_output: false,
        }
    }

    #[test]
    fn output_of_one_stream_grows_one_entry() {
        let exec = Exec::new("x".into(), 1000, false);
        exec.output(Stream::Stdout, b"ab");
        let mut position = SpoolPosition::default();
        assert_eq!(exec.look(&mut position).unwrap().2, b"ab");
        assert!(exec.look(&mut position).is_none());
        exec.output(Stream::Stdout, b"cd");
        let (from, event, bytes) = exec.look(&mut position).unwrap();
        assert_eq!(
            (from, event, &bytes[..]),
            (SpoolPosition { entry: 0, offset: 2 }, Event::Stdout, &b"cd"[..])
        );
        exec.output(Stream::Stderr, b"e");
        assert_eq!(exec.look(&mut position).unwrap().0, SpoolPosition { entry: 1, offset: 0 });
        assert_eq!(all(&exec).len(), 2);
    }

    #[test]
    fn output_beyond_its_limit_is_counted() {
        let exec = Exec::new("x".into(), 10, false);
        exec.output(Stream::Stdout, &[b'a'; 8]);
        exec.output(Stream::Stdout, &[b'b'; 8]);
        exec.output(Stream::Stdout, &[b'c'; 8]);
        exec.output(Stream::Stderr, &[b'd'; 10]);
        assert_eq!(all(&exec)[0].2, b"aaaaaaaabb");
        assert_eq!(exec.dropped.get(), Dropped { stdout_bytes: 14, stderr_bytes: 0, results: 0 });
    }

    #[test]
    fn alternating_streams_cannot_grow_the_spool_without_bound() {
        let exec = Exec::new("x".into(), u64::MAX, false);
        for _ in 0..MAX_ENTRIES {
            exec.output(Stream::Stdout, b"o");
            exec.output(Stream::Stderr, b"e");
        }
        assert_eq!(exec.entries.borrow().len(), MAX_ENTRIES);
        // The last entry is of stderr and goes on growing; there is no room for stdout.
        let lost = MAX_ENTRIES as u64 / 2;
        assert_eq!(exec.dropped.get(), Dropped { stdout_bytes: lost, stderr_bytes: 0, results: 0 });
    }

    #[test]
    fn the_oldest_finished_executions_are_forgotten_but_never_a_running_one() {
        let execs = Execs::default();
        let running = execs.begin(&spec("running")).unwrap();
        for n in 0..2 * MAX_FINISHED {
            let exec = execs.begin(&spec(&n.to_string())).unwrap();
            exec.done.set(true);
        }
        assert!(execs.begin(&spec("running")).is_none(), "ids are not reused");
        assert!(execs.get("running").is_some() && execs.get("0").is_none());
        execs.forget("running");
        assert!(execs.get("running").is_some());
        let known = |execs: &Execs| execs.known().iter().filter(|known| known.running).count();
        assert_eq!((execs.known().len(), known(&execs)), (MAX_FINISHED, 1));
        running.done.set(true);
        execs.forget("running");
        assert!(execs.get("running").is_none());
    }
}
