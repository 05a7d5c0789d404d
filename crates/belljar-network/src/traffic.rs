//! What went out of a sandbox and what was refused: counted, and the last of it remembered.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

use super::host::Target;
use crate::lock;

/// Visits that are remembered of one sandbox.
const REMEMBERED: usize = 256;

/// Lines of one sandbox in the audit log, per minute. What comes on top of them is counted: a
/// sandbox that knocks in a loop must not push everybody else out of the log.
const NOTED_PER_MINUTE: u32 = 600;

/// The longest name of a method that is remembered.
const MAX_METHOD: usize = 16;

/// One attempt to reach somebody.
#[derive(Debug, Clone, Serialize)]
pub struct Visit {
    #[serde(skip)]
    pub begun_ms: i64,
    /// `CONNECT` for a tunnel, else that of the request.
    pub method: String,
    /// As it was asked for, in its plain form; empty if it could not be understood.
    pub host: String,
    pub port: u16,
    pub outcome: Outcome,
    /// Why it was refused, or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Of the answer, where we see it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Bytes, as the other side counts them.
    pub sent: u64,
    pub received: u64,
    pub duration_ms: u64,
    /// Headers that were added; their values are secret.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub injected: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Reached,
    Refused,
    Failed,
}

impl Outcome {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Reached => "reached",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
        }
    }
}

/// Everything since the sandbox was made, or taken over by this server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub reached: u64,
    pub refused: u64,
    pub failed: u64,
    pub sent: u64,
    pub received: u64,
}

/// Who hears of every visit when it is over, and whether it is to be noted or only counted.
pub type Listener = Box<dyn Fn(&Visit, bool) + Send + Sync>;

/// The traffic of one sandbox.
pub struct Traffic {
    inner: Mutex<Inner>,
    /// Bytes that may still go in either direction.
    left: AtomicU64,
    listener: Option<Listener>,
}

#[derive(Debug, Default)]
struct Inner {
    totals: Totals,
    recent: VecDeque<Visit>,
    /// The current minute, and how many were noted and how many not since it began.
    minute: i64,
    noted: u32,
    unnoted: u64,
}

impl std::fmt::Debug for Traffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Traffic").field("totals", &self.totals()).finish_non_exhaustive()
    }
}

impl Traffic {
    pub(crate) fn new(max_bytes: u64, listener: Option<Listener>) -> Arc<Traffic> {
        let (inner, left) = (Mutex::default(), AtomicU64::new(max_bytes));
        Arc::new(Traffic { inner, left, listener })
    }

    #[must_use]
    pub fn totals(&self) -> Totals {
        lock(&self.inner).totals
    }

    /// The last visits, the newest first.
    #[must_use]
    pub fn recent(&self) -> Vec<Visit> {
        lock(&self.inner).recent.iter().rev().cloned().collect()
    }

    /// Takes bytes off what is left; false if there are not that many.
    fn spend(&self, bytes: u64) -> bool {
        let spent = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        if spent.is_err() {
            self.left.store(0, Ordering::Relaxed);
        }
        spent.is_ok()
    }

    pub(crate) fn is_used_up(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    fn record(&self, mut visit: Visit) {
        let minute = visit.begun_ms / 60_000;
        let noted = {
            let mut inner = lock(&self.inner);
            let totals = &mut inner.totals;
            match visit.outcome {
                Outcome::Reached => totals.reached += 1,
                Outcome::Refused => totals.refused += 1,
                Outcome::Failed => totals.failed += 1,
            }
            totals.sent += visit.sent;
            totals.received += visit.received;
            if inner.recent.len() >= REMEMBERED {
                inner.recent.pop_front();
            }
            inner.recent.push_back(visit.clone());
            if inner.minute != minute {
                (inner.minute, inner.noted) = (minute, 0);
            }
            inner.noted += 1;
            let noted = inner.noted <= NOTED_PER_MINUTE;
            if noted {
                let unnoted = std::mem::take(&mut inner.unnoted);
                if unnoted > 0 {
                    let reason = visit.reason.take().map(|why| why + "; ").unwrap_or_default();
                    visit.reason = Some(format!("{reason}{unnoted} before it were not noted"));
                }
            } else {
                inner.unnoted += 1;
            }
            noted
        };
        if let Some(listener) = &self.listener {
            listener(&visit, noted);
        }
    }
}

/// A visit while it lasts; recorded when it is dropped.
pub(crate) struct Trip {
    traffic: Arc<Traffic>,
    visit: Visit,
    begun: Instant,
    pub(crate) meter: Arc<Meter>,
    forgotten: bool,
}

impl Trip {
    pub(crate) fn begin(traffic: &Arc<Traffic>, method: &str, target: Option<&Target>) -> Trip {
        let visit = Visit {
            begun_ms: now_ms(),
            method: method.chars().take(MAX_METHOD).collect(),
            host: target.map(|target| target.host.bare()).unwrap_or_default(),
            port: target.map_or(0, |target| target.port),
            outcome: Outcome::Reached,
            reason: None,
            status: None,
            sent: 0,
            received: 0,
            duration_ms: 0,
            injected: Vec::new(),
        };
        let begun = Instant::now();
        let meter = Arc::new(Meter {
            traffic: Arc::clone(traffic),
            begun,
            moved_ms: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            status: AtomicU16::new(0),
            idle: AtomicBool::new(false),
        });
        Trip { traffic: Arc::clone(traffic), visit, begun, meter, forgotten: false }
    }

    pub(crate) fn ended(&mut self, outcome: Outcome, reason: String) {
        self.visit.outcome = outcome;
        self.visit.reason = Some(reason);
    }

    /// It is not a visit of its own after all.
    pub(crate) fn forget(mut self) {
        self.forgotten = true;
    }

    pub(crate) fn injected(&mut self, header: &str) {
        self.visit.injected.push(header.to_owned());
    }
}

/// Milliseconds since 1970.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl Drop for Trip {
    fn drop(&mut self) {
        if self.forgotten {
            return;
        }
        let mut visit = self.visit.clone();
        visit.sent = self.meter.sent.load(Ordering::Relaxed);
        visit.received = self.meter.received.load(Ordering::Relaxed);
        visit.status = Some(self.meter.status.load(Ordering::Relaxed)).filter(|code| *code > 0);
        visit.duration_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.traffic.record(visit);
    }
}

/// Counts what a connection moves, ends it where the sandbox has moved enough, and knows when it
/// last moved anything.
#[derive(Debug)]
pub(crate) struct Meter {
    traffic: Arc<Traffic>,
    begun: Instant,
    moved_ms: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    status: AtomicU16,
    idle: AtomicBool,
}

impl Meter {
    pub(crate) fn status(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    pub(crate) fn was_idle(&self) -> bool {
        self.idle.load(Ordering::Relaxed)
    }

    /// Resolves when nothing has moved for this long.
    pub(crate) async fn idle_for(&self, patience: Duration) {
        loop {
            let moved = self.begun + Duration::from_millis(self.moved_ms.load(Ordering::Relaxed));
            if moved.elapsed() >= patience {
                self.idle.store(true, Ordering::Relaxed);
                return;
            }
            tokio::time::sleep_until(moved + patience).await;
        }
    }

    fn moved(&self, counter: &AtomicU64, bytes: usize) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let now = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.moved_ms.store(now, Ordering::Relaxed);
        counter.fetch_add(bytes as u64, Ordering::Relaxed);
        if self.traffic.spend(bytes as u64) {
            return Ok(());
        }
        Err(io::Error::other("this sandbox has moved as many bytes as it may"))
    }
}

/// A connection to the outside, metered.
pub(crate) struct Metered<S> {
    inner: S,
    meter: Arc<Meter>,
}

impl<S> Metered<S> {
    pub(crate) fn new(inner: S, meter: &Arc<Meter>) -> Metered<S> {
        Metered { inner, meter: Arc::clone(meter) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.inner).poll_read(context, buffer);
        if let Poll::Ready(Ok(())) = polled {
            self.meter.moved(&self.meter.received, buffer.filled().len() - before)?;
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.inner).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = polled {
            self.meter.moved(&self.meter.sent, written)?;
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn a_sandbox_that_knocks_in_a_loop_is_counted_and_not_repeated() {
        let heard = Arc::new(AtomicUsize::new(0));
        let listener = {
            let heard = Arc::clone(&heard);
            move |_: &Visit, noted| {
                heard.fetch_add(usize::from(noted), Ordering::Relaxed);
            }
        };
        let traffic = Traffic::new(10, Some(Box::new(listener)));
        let many = NOTED_PER_MINUTE as usize * 3;
        for _ in 0..many {
            Trip::begin(&traffic, "GET", None).ended(Outcome::Refused, "no".into());
        }
        assert_eq!(traffic.totals().refused, many as u64);
        assert_eq!(traffic.recent().len(), REMEMBERED);
        // A minute may have ended meanwhile.
        assert!(heard.load(Ordering::Relaxed) <= 2 * NOTED_PER_MINUTE as usize);
    }

    #[tokio::test]
    async fn bytes_run_out() {
        use tokio::io::AsyncWriteExt as _;
        let traffic = Traffic::new(10, None);
        let trip = Trip::begin(&traffic, "GET", None);
        let mut stream = Metered::new(tokio::io::sink(), &trip.meter);
        stream.write_all(&[0; 10]).await.unwrap();
        assert!(traffic.is_used_up());
        assert!(stream.write_all(&[0; 1]).await.is_err());
        drop(trip);
        assert_eq!(traffic.totals().sent, 11);
    }

    #[tokio::test(start_paused = true)]
    async fn idleness_is_counted_from_the_last_byte() {
        use tokio::io::AsyncWriteExt as _;
        let traffic = Traffic::new(u64::MAX, None);
        let trip = Trip::begin(&traffic, "GET", None);
        let mut stream = Metered::new(tokio::io::sink(), &trip.meter);
        let begun = Instant::now();
        let writing = async {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(8)).await;
                stream.write_all(b"x").await.unwrap();
            }
        };
        let idle = trip.meter.idle_for(Duration::from_secs(10));
        tokio::join!(writing, idle);
        assert_eq!(begun.elapsed().as_secs(), 50);
        assert!(trip.meter.was_idle());
    }
}
