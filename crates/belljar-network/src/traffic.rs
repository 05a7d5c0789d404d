//! Records the traffic of a sandbox: totals, and the last visits, refused ones included.

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

use crate::host::Target;
use crate::lock;

/// How many visits of one sandbox are kept.
const MAX_VISITS: usize = 256;

/// The most lines of one sandbox in the audit log, per minute. Further visits are only counted, so that a sandbox that
/// connects in a loop does not fill the log.
const LOGGED_PER_MINUTE: u32 = 600;

/// Characters of a method's name that are kept.
const MAX_METHOD: usize = 16;

/// One request, or one tunnel, of code in a sandbox.
#[derive(Debug, Clone, Serialize)]
pub struct Visit {
    #[serde(skip)]
    pub begun_ms: i64,
    /// `CONNECT` for a tunnel, else the method of the request.
    pub method: String,
    /// Normalised; empty if it could not be parsed.
    pub host: String,
    pub port: u16,
    pub outcome: Outcome,
    /// Why it was refused, failed or was cut off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The HTTP status of the response, unless it is in a tunnel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// Bytes on the connection to the host.
    pub sent: u64,
    pub received: u64,
    pub duration_ms: u64,
    /// Names of the headers that the proxy added.
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

/// Totals since this server created or adopted the sandbox.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    pub reached: u64,
    pub refused: u64,
    pub failed: u64,
    pub sent: u64,
    pub received: u64,
}

/// Called at the end of every visit. The flag is true if the visit should be logged, false if it should only be
/// counted.
pub type VisitListener = Box<dyn Fn(&Visit, bool) + Send + Sync>;

/// The traffic of one sandbox.
pub struct Traffic {
    state: Mutex<TrafficState>,
    /// Bytes that may still be sent or received.
    left: AtomicU64,
    listener: Option<VisitListener>,
}

#[derive(Debug, Default)]
struct TrafficState {
    totals: Totals,
    recent: VecDeque<Visit>,
    /// The current minute, since 1970.
    minute: i64,
    /// Visits in this minute.
    in_minute: u32,
    /// How many visits were not logged since the last logged one.
    unlogged: u64,
}

impl std::fmt::Debug for Traffic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Traffic").field("totals", &self.totals()).finish_non_exhaustive()
    }
}

impl Traffic {
    pub(crate) fn new(max_bytes: u64, listener: Option<VisitListener>) -> Arc<Traffic> {
        let (state, left) = (Mutex::default(), AtomicU64::new(max_bytes));
        Arc::new(Traffic { state, left, listener })
    }

    #[must_use]
    pub fn totals(&self) -> Totals {
        lock(&self.state).totals
    }

    /// The last visits, the newest first.
    #[must_use]
    pub fn recent(&self) -> Vec<Visit> {
        lock(&self.state).recent.iter().rev().cloned().collect()
    }

    /// Subtracts bytes from the allowance; false if fewer are left.
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
        let logged = lock(&self.state).add(&mut visit);
        if let Some(listener) = &self.listener {
            listener(&visit, logged);
        }
    }
}

impl TrafficState {
    /// Counts a visit and keeps it. Returns whether to log it; if so, its reason also says how many visits were not
    /// logged.
    fn add(&mut self, visit: &mut Visit) -> bool {
        match visit.outcome {
            Outcome::Reached => self.totals.reached += 1,
            Outcome::Refused => self.totals.refused += 1,
            Outcome::Failed => self.totals.failed += 1,
        }
        self.totals.sent += visit.sent;
        self.totals.received += visit.received;
        if self.recent.len() >= MAX_VISITS {
            self.recent.pop_front();
        }
        self.recent.push_back(visit.clone());
        let minute = visit.begun_ms / 60_000;
        if self.minute != minute {
            (self.minute, self.in_minute) = (minute, 0);
        }
        self.in_minute += 1;
        if self.in_minute > LOGGED_PER_MINUTE {
            self.unlogged += 1;
            return false;
        }
        let unlogged = std::mem::take(&mut self.unlogged);
        if unlogged > 0 {
            let reason = visit.reason.take().map(|why| why + "; ").unwrap_or_default();
            visit.reason = Some(format!("{reason}{unlogged} visits before it were not logged"));
        }
        true
    }
}

/// A visit in progress; recorded when it is dropped.
pub(crate) struct OpenVisit {
    traffic: Arc<Traffic>,
    visit: Visit,
    begun: Instant,
    pub(crate) meter: Arc<VisitMeter>,
    discarded: bool,
}

impl OpenVisit {
    pub(crate) fn begin(
        traffic: &Arc<Traffic>,
        method: &str,
        target: Option<&Target>,
    ) -> OpenVisit {
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
        let meter = Arc::new(VisitMeter {
            traffic: Arc::clone(traffic),
            begun,
            moved_ms: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            status: AtomicU16::new(0),
            idle: AtomicBool::new(false),
        });
        OpenVisit { traffic: Arc::clone(traffic), visit, begun, meter, discarded: false }
    }

    pub(crate) fn set_outcome(&mut self, outcome: Outcome, reason: String) {
        self.visit.outcome = outcome;
        self.visit.reason = Some(reason);
    }

    /// Drops the visit without recording it.
    pub(crate) fn discard(mut self) {
        self.discarded = true;
    }

    pub(crate) fn add_injected(&mut self, header: &str) {
        self.visit.injected.push(header.to_owned());
    }
}

/// Milliseconds since 1970.
fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

impl Drop for OpenVisit {
    fn drop(&mut self) {
        if self.discarded {
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

/// Counts the bytes of a connection, fails it when the sandbox has used up its allowance, and stores when it was last
/// active.
#[derive(Debug)]
pub(crate) struct VisitMeter {
    traffic: Arc<Traffic>,
    begun: Instant,
    moved_ms: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
    status: AtomicU16,
    idle: AtomicBool,
}

impl VisitMeter {
    pub(crate) fn status(&self, status: u16) {
        self.status.store(status, Ordering::Relaxed);
    }

    pub(crate) fn was_idle(&self) -> bool {
        self.idle.load(Ordering::Relaxed)
    }

    /// Returns when no byte was sent or received for this long.
    pub(crate) async fn idle_for(&self, limit: Duration) {
        loop {
            let moved = self.begun + Duration::from_millis(self.moved_ms.load(Ordering::Relaxed));
            if moved.elapsed() >= limit {
                self.idle.store(true, Ordering::Relaxed);
                return;
            }
            tokio::time::sleep_until(moved + limit).await;
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
        Err(io::Error::other("this sandbox has used up its network bytes"))
    }
}

/// A connection to a host, metered.
pub(crate) struct Metered<S> {
    inner: S,
    meter: Arc<VisitMeter>,
}

impl<S> Metered<S> {
    pub(crate) fn new(inner: S, meter: &Arc<VisitMeter>) -> Metered<S> {
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
    fn a_sandbox_that_connects_in_a_loop_is_counted_and_not_logged() {
        let logged = Arc::new(AtomicUsize::new(0));
        let listener = {
            let count = Arc::clone(&logged);
            move |_: &Visit, log| {
                count.fetch_add(usize::from(log), Ordering::Relaxed);
            }
        };
        let traffic = Traffic::new(10, Some(Box::new(listener)));
        let many = LOGGED_PER_MINUTE as usize * 3;
        for _ in 0..many {
            OpenVisit::begin(&traffic, "GET", None).set_outcome(Outcome::Refused, "no".into());
        }
        assert_eq!(traffic.totals().refused, many as u64);
        assert_eq!(traffic.recent().len(), MAX_VISITS);
        // A new minute may have begun.
        assert!(logged.load(Ordering::Relaxed) <= 2 * LOGGED_PER_MINUTE as usize);
    }

    #[tokio::test]
    async fn an_allowance_of_bytes_is_enforced() {
        use tokio::io::AsyncWriteExt as _;
        let traffic = Traffic::new(10, None);
        let visit = OpenVisit::begin(&traffic, "GET", None);
        let mut stream = Metered::new(tokio::io::sink(), &visit.meter);
        stream.write_all(&[0; 10]).await.unwrap();
        assert!(traffic.is_used_up());
        assert!(stream.write_all(&[0; 1]).await.is_err());
        drop(visit);
        assert_eq!(traffic.totals().sent, 11);
    }

    #[tokio::test(start_paused = true)]
    async fn idleness_is_counted_from_the_last_byte() {
        use tokio::io::AsyncWriteExt as _;
        let traffic = Traffic::new(u64::MAX, None);
        let visit = OpenVisit::begin(&traffic, "GET", None);
        let mut stream = Metered::new(tokio::io::sink(), &visit.meter);
        let begun = Instant::now();
        let writing = async {
            for _ in 0..5 {
                tokio::time::sleep(Duration::from_secs(8)).await;
                stream.write_all(b"x").await.unwrap();
            }
        };
        let idle = visit.meter.idle_for(Duration::from_secs(10));
        tokio::join!(writing, idle);
        assert_eq!(begun.elapsed().as_secs(), 50);
        assert!(visit.meter.was_idle());
    }
}
