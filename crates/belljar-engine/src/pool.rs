//! Sandboxes made before they are asked for, each with a warm kernel inside.
//!
//! A task of its own keeps the pool at its target. Whoever takes one from an empty pool makes a
//! cold one instead of waiting, and it is counted.

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

/// The longest wait between two attempts. A pool that cannot be filled, say because its image is not there, costs
/// next to nothing; users' own sandboxes are made without it.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Whoever took a sandbox is about to use it; making the next one at the same moment would take
/// the processor from them.
const REFILL_DELAY: Duration = Duration::from_millis(20);

/// Decides what the next sandbox is like, and whose it will be: a session on disk has its directory
/// from the beginning, so its id is chosen with it.
pub type Next = Box<dyn Fn() -> Result<(String, SandboxSpec), EngineError> + Send + Sync>;

/// A sandbox with a kernel, and the id its user is to have.
#[derive(Debug)]
pub struct Warm {
    pub id: String,
    pub sandbox: Sandbox,
}

#[derive(Debug)]
pub struct Pool {
    shared: Arc<PoolState>,
    /// Until the pool is drained.
    filler: Mutex<Option<tokio::task::JoinHandle<()>>>,
}

struct PoolState {
    runtime: Arc<dyn Runtime>,
    next: Next,
    target: usize,
    ready: Mutex<Vec<Warm>>,
    taken: Notify,
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
        let shared = Arc::new(PoolState {
            runtime,
            next,
            target,
            ready: Mutex::default(),
            taken: Notify::new(),
            filled: Notify::new(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        });
        let filler = Mutex::new(Some(tokio::spawn(fill(Arc::clone(&shared)))));
        Pool { shared, filler }
    }

    /// A sandbox with a warm kernel: from the pool, or a new one if that is empty.
    pub async fn take(&self) -> Result<Warm, EngineError> {
        if let Some(warm) = self.take_ready() {
            return Ok(warm);
        }
        let (id, spec) = next(&self.shared).await?;
        Ok(Warm { id, sandbox: warm_sandbox(&self.shared.runtime, &spec).await? })
    }

    /// One that waits, if one does; it is counted either way.
    pub fn take_ready(&self) -> Option<Warm> {
        let ready = {
            let mut ready = self.shared.lock();
            // One that died while it waited is of no use to anybody.
            ready.retain(|warm| warm.sandbox.link().is_open());
            ready.pop()
        };
        self.shared.taken.notify_one();
        let counter = if ready.is_some() { &self.shared.hits } else { &self.shared.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        ready
    }

    /// Waits until the pool is full.
    pub async fn full(&self) {
        loop {
            let filled = self.shared.filled.notified();
            if self.shared.lock().len() >= self.shared.target {
                return;
            }
            filled.await;
        }
    }

    /// How many wait.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.shared.lock().len()
    }

    /// How often a sandbox was ready, and how often not.
    #[must_use]
    pub fn hits_and_misses(&self) -> (u64, u64) {
        (self.shared.hits.load(Ordering::Relaxed), self.shared.misses.load(Ordering::Relaxed))
    }

    /// Ends every sandbox still in the pool; those ids will not be used.
    pub async fn drain(&self) -> Vec<String> {
        let filler = crate::lock(&self.filler).take();
        if let Some(filler) = filler {
            filler.abort();
            // It ends only when what it was making is removed.
            let _ = filler.await;
        }
        let rest: Vec<Warm> = std::mem::take(&mut *self.shared.lock());
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
        // Shells and commands work; whoever asks for Python is told.
        Err(error) if error.is_no_interpreter() => Ok(sandbox),
        Err(error) => {
            sandbox.destroy().await;
            Err(EngineError::StartKernel(error))
        }
    }
}

/// Decides on a thread of its own: a directory, or a file system, may have to be made for it.
async fn next(shared: &Arc<PoolState>) -> Result<(String, SandboxSpec), EngineError> {
    let shared = Arc::clone(shared);
    let decided = tokio::task::spawn_blocking(move || (shared.next)()).await;
    decided.unwrap_or(Err(EngineError::Stopping))
}

async fn fill(shared: Arc<PoolState>) {
    // A kernel started before the zygote is warm would be slow to start and large for ever.
    shared.runtime.warmed_up().await;
    let mut trouble = Trouble::default();
    loop {
        while shared.lock().len() < shared.target {
            let made = match next(&shared).await {
                Ok((id, spec)) => {
                    let made = warm_sandbox(&shared.runtime, &spec).await;
                    made.map(|sandbox| Warm { id, sandbox })
                }
                Err(error) => Err(error),
            };
            match made {
                Ok(warm) => {
                    shared.lock().push(warm);
                    shared.filled.notify_waiters();
                    trouble.is_over();
                }
                Err(error) => {
                    let pause = trouble.after(&in_full(&error));
                    tokio::time::sleep(RETRY_PAUSE).await;
                    // Somebody who took one, or wanted to, may have changed what was wrong.
                    let rest = tokio::time::sleep(pause.saturating_sub(RETRY_PAUSE));
                    tokio::select! {
                        () = rest => {}
                        () = shared.taken.notified() => {}
                    }
                }
            }
        }
        shared.taken.notified().await;
        tokio::time::sleep(REFILL_DELAY).await;
    }
}

/// Failures in a row. Each cause is logged once, not at every attempt.
#[derive(Debug, Default)]
struct Trouble {
    failures: u32,
    said: Option<String>,
}

impl Trouble {
    /// Notes a failure, and says how long to wait before the next attempt.
    fn after(&mut self, why: &str) -> Duration {
        // Without ids, which are others at every attempt.
        let cause: String = why.chars().filter(|c| !c.is_ascii_hexdigit()).collect();
        if self.said.as_ref() != Some(&cause) {
            tracing::warn!("failed to fill the pool, trying again from time to time: {why}");
            self.said = Some(cause);
        }
        let pause = RETRY_PAUSE.saturating_mul(2_u32.saturating_pow(self.failures));
        self.failures = self.failures.saturating_add(1);
        pause.min(LONGEST_PAUSE)
    }

    fn is_over(&mut self) {
        if self.said.take().is_some() {
            tracing::info!("the pool is being filled again");
        }
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rarer_until_one_succeeds() {
        let mut trouble = Trouble::default();
        let pauses: Vec<u64> = (0..9).map(|_| trouble.after("no image").as_secs()).collect();
        assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 60, 60]);
        trouble.failures = u32::MAX;
        assert_eq!(trouble.after("no image"), LONGEST_PAUSE);
        trouble.is_over();
        assert_eq!(trouble.after("no image"), RETRY_PAUSE);
    }
}
