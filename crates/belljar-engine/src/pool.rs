//! A pool of sandboxes that are created in advance, each with a warm kernel inside.
//!
//! A separate task keeps the pool at its target size. If the pool is empty, the caller creates a cold sandbox instead
//! of waiting, and a miss is counted.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belljar_proto::exec::Language;
use belljar_runtime::{Runtime, Sandbox, SandboxSpec};
use tokio::sync::Notify;

use crate::EngineError;
use crate::error::in_full;

/// After a failure to make a sandbox, the next attempt waits this long, and twice as long after each further one.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The longest wait between two attempts. A pool that cannot be filled, for example because its image does not exist,
/// costs almost nothing. Sandboxes of users are created without the pool.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// A client that took a sandbox is about to use it. Creating the next one at the same moment would take processor time
/// from that client.
const REFILL_DELAY: Duration = Duration::from_millis(20);

/// Returns the specification of the next sandbox and the id of its session. The id is needed now because a session on
/// disk has its directory from the beginning.
pub type Next = Box<dyn Fn() -> Result<(String, SandboxSpec), EngineError> + Send + Sync>;

/// A sandbox with a kernel, and the id of the session that takes it.
#[derive(Debug)]
pub struct Warm {
    pub id: String,
    pub sandbox: Sandbox,
}

#[derive(Debug)]
pub struct Pool {
    state: Arc<PoolState>,
    /// The task that fills the pool, until the pool is drained.
    filler: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

struct PoolState {
    runtime: Arc<dyn Runtime>,
    next: Next,
    target: usize,
    ready: Mutex<Vec<Warm>>,
    asked: Notify,
    filled: Notify,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl fmt::Debug for PoolState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("target", &self.target).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool of `target` sandboxes, filled in the background.
    #[must_use]
    pub fn start(runtime: Arc<dyn Runtime>, target: usize, next: Next) -> Pool {
        let state = Arc::new(PoolState {
            runtime,
            next,
            target,
            ready: Mutex::default(),
            asked: Notify::new(),
            filled: Notify::new(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        });
        let filler = Mutex::new(Some(tokio::spawn(fill(Arc::clone(&state)))));
        Pool { state, filler }
    }

    /// A sandbox with a warm kernel: from the pool, or a new one if that is empty.
    pub async fn take(&self) -> Result<Warm, EngineError> {
        if let Some(warm) = self.take_ready() {
            return Ok(warm);
        }
        let (id, spec) = next(&self.state).await?;
        Ok(Warm { id, sandbox: warm_sandbox(&self.state.runtime, &spec).await? })
    }

    /// A warm sandbox, if there is one; hits and misses are counted.
    pub fn take_ready(&self) -> Option<Warm> {
        let ready = {
            let mut ready = self.state.lock();
            // A sandbox may have died while it waited.
            ready.retain(|warm| warm.sandbox.link().is_open());
            ready.pop()
        };
        self.state.asked.notify_one();
        let counter = if ready.is_some() { &self.state.hits } else { &self.state.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        ready
    }

    /// Waits until the pool is full.
    pub async fn full(&self) {
        loop {
            let filled = self.state.filled.notified();
            if self.state.lock().len() >= self.state.target {
                return;
            }
            filled.await;
        }
    }

    /// How many sandboxes are ready.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.state.lock().len()
    }

    /// How often a sandbox was ready, and how often not.
    #[must_use]
    pub fn hits_and_misses(&self) -> (u64, u64) {
        (self.state.hits.load(Ordering::Relaxed), self.state.misses.load(Ordering::Relaxed))
    }

    /// Ends every sandbox that is left in the pool. Returns their ids, which no session uses.
    pub async fn drain(&self) -> Vec<String> {
        let filler = crate::lock(&self.filler).take();
        if let Some(filler) = filler {
            filler.abort();
            // The task ends after it has removed the sandbox that it was creating.
            let _ = filler.await;
        }
        let rest: Vec<Warm> = std::mem::take(&mut *self.state.lock());
        let mut ids = Vec::with_capacity(rest.len());
        for warm in rest {
            warm.sandbox.destroy().await;
            ids.push(warm.id);
        }
        ids
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(filler) = crate::lock(&self.filler).take() {
            filler.abort();
        }
    }
}

impl PoolState {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Warm>> {
        crate::lock(&self.ready)
    }
}

/// A new sandbox with a Python kernel in it, if its image has Python.
pub async fn warm_sandbox(
    runtime: &Arc<dyn Runtime>,
    spec: &SandboxSpec,
) -> Result<Sandbox, EngineError> {
    let sandbox = Arc::clone(runtime).create(spec).await.map_err(EngineError::Create)?;
    match sandbox.start_kernel(Language::Python).await {
        Ok(_) => Ok(sandbox),
        // Shells and commands work; a request for Python gets an error.
        Err(error) if error.is_no_interpreter() => Ok(sandbox),
        Err(error) => {
            sandbox.destroy().await;
            Err(EngineError::StartKernel(error))
        }
    }
}

/// Runs on a blocking thread, because a directory or a file system may have to be created.
async fn next(state: &Arc<PoolState>) -> Result<(String, SandboxSpec), EngineError> {
    let state = Arc::clone(state);
    let decided = tokio::task::spawn_blocking(move || (state.next)()).await;
    decided.unwrap_or(Err(EngineError::Stopping))
}

async fn fill(state: Arc<PoolState>) {
    // A kernel that is started before the zygote is warm starts slowly and uses more memory for its whole life.
    state.runtime.warmed_up().await;
    let mut failures = PoolFailures::default();
    loop {
        while state.lock().len() < state.target {
            let made = match next(&state).await {
                Ok((id, spec)) => {
                    let made = warm_sandbox(&state.runtime, &spec).await;
                    made.map(|sandbox| Warm { id, sandbox })
                }
                Err(error) => Err(error),
            };
            match made {
                Ok(warm) => {
                    state.lock().push(warm);
                    state.filled.notify_waiters();
                    failures.reset();
                }
                Err(error) => {
                    let pause = failures.after(&in_full(&error));
                    tokio::time::sleep(RETRY_PAUSE).await;
                    // If a sandbox is requested meanwhile, the cause may be gone, so try at once.
                    let rest = tokio::time::sleep(pause.saturating_sub(RETRY_PAUSE));
                    tokio::select! {
                        () = rest => {}
                        () = state.asked.notified() => {}
                    }
                }
            }
        }
        state.asked.notified().await;
        tokio::time::sleep(REFILL_DELAY).await;
    }
}

/// Consecutive failures to fill the pool. Each cause is logged once, not at every attempt.
#[derive(Debug, Default)]
struct PoolFailures {
    count: u32,
    logged: Option<String>,
}

impl PoolFailures {
    /// Counts a failure and returns how long to wait before the next attempt.
    fn after(&mut self, why: &str) -> Duration {
        // Ids are removed, because they differ at every attempt.
        let cause: String = why.chars().filter(|c| !c.is_ascii_hexdigit()).collect();
        if self.logged.as_ref() != Some(&cause) {
            tracing::warn!("failed to fill the pool, trying again from time to time: {why}");
            self.logged = Some(cause);
        }
        let pause = RETRY_PAUSE.saturating_mul(2_u32.saturating_pow(self.count));
        self.count = self.count.saturating_add(1);
        pause.min(LONGEST_PAUSE)
    }

    fn reset(&mut self) {
        if self.logged.take().is_some() {
            tracing::info!("the pool is being filled again");
        }
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rarer_until_one_succeeds() {
        let mut failures = PoolFailures::default();
        let pauses: Vec<u64> = (0..9).map(|_| failures.after("no image").as_secs()).collect();
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        failures.count = u32::MAX;
        assert_eq!(failures.after("no image"), LONGEST_PAUSE);
        failures.reset();
        assert_eq!(failures.after("no image"), RETRY_PAUSE);
    }
}
