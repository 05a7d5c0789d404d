//! Sandboxes made before they are asked for, each with a warm kernel inside.
//!
//! A task of its own keeps the pool at its target. Whoever takes one from an empty pool makes a
//! cold one instead of waiting, and it is counted.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belljar_proto::exec::Language;
use belljar_runtime::native::NativeRuntime;
use belljar_runtime::{Sandbox, SandboxSpec};
use tokio::sync::Notify;

use crate::EngineError;

/// After a failure to make a sandbox, the next attempt waits this long.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Whoever took a sandbox is about to use it; making the next one at the same moment would take
/// the processor from them.
const REFILL_DELAY: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    filler: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    runtime: Arc<NativeRuntime>,
    spec: SandboxSpec,
    target: usize,
    ready: Mutex<Vec<Sandbox>>,
    taken: Notify,
    filled: Notify,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Pool {
    /// A pool of `target` sandboxes of this kind, filled in the background.
    #[must_use]
    pub fn start(runtime: Arc<NativeRuntime>, spec: SandboxSpec, target: usize) -> Pool {
        let shared = Arc::new(Shared {
            runtime,
            spec,
            target,
            ready: Mutex::default(),
            taken: Notify::new(),
            filled: Notify::new(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        });
        let filler = tokio::spawn(fill(Arc::clone(&shared)));
        Pool { shared, filler }
    }

    /// A sandbox with a warm kernel: from the pool, or a new one if that is empty.
    pub async fn take(&self) -> Result<Sandbox, EngineError> {
        let ready = {
            let mut ready = self.shared.lock();
            // One that died while it waited is of no use to anybody.
            ready.retain(|sandbox| sandbox.link().is_open());
            ready.pop()
        };
        self.shared.taken.notify_one();
        match ready {
            Some(sandbox) => {
                self.shared.hits.fetch_add(1, Ordering::Relaxed);
                Ok(sandbox)
            }
            None => {
                self.shared.misses.fetch_add(1, Ordering::Relaxed);
                warm_sandbox(&self.shared.runtime, &self.shared.spec).await
            }
        }
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

    /// How often a sandbox was ready, and how often not.
    #[must_use]
    pub fn hits_and_misses(&self) -> (u64, u64) {
        (self.shared.hits.load(Ordering::Relaxed), self.shared.misses.load(Ordering::Relaxed))
    }

    /// Ends every sandbox still in the pool.
    pub async fn drain(self) {
        self.filler.abort();
        let rest: Vec<Sandbox> = std::mem::take(&mut *self.shared.lock());
        for sandbox in rest {
            sandbox.destroy().await;
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.filler.abort();
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Sandbox>> {
        self.ready.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A new sandbox with a kernel in it.
pub async fn warm_sandbox(
    runtime: &Arc<NativeRuntime>,
    spec: &SandboxSpec,
) -> Result<Sandbox, EngineError> {
    let sandbox = runtime.create(spec).await.map_err(EngineError::Create)?;
    match sandbox.start_kernel(Language::Python).await {
        Ok(_) => Ok(sandbox),
        Err(error) => {
            sandbox.destroy().await;
            Err(EngineError::StartKernel(error))
        }
    }
}

async fn fill(shared: Arc<Shared>) {
    loop {
        while shared.lock().len() < shared.target {
            match warm_sandbox(&shared.runtime, &shared.spec).await {
                Ok(sandbox) => {
                    shared.lock().push(sandbox);
                    shared.filled.notify_waiters();
                }
                Err(error) => {
                    tracing::warn!("failed to fill the pool: {}", crate::run::in_full(&error));
                    tokio::time::sleep(RETRY_PAUSE).await;
                }
            }
        }
        shared.taken.notified().await;
        tokio::time::sleep(REFILL_DELAY).await;
    }
}
