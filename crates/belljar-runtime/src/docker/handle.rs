//! The host's handle of a container.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use belljar_proto::exec::Language;
use belljar_proto::guest::{Call, ZygoteOrder};
use belljar_sys::cgroup::Meters;
use belljar_sys::privileges;
use tokio::sync::watch;

use super::DockerRuntime;
use super::deaths::Death;
use super::transport::Transport;
use crate::RuntimeError;
use crate::link::Link;
use crate::sandbox::BackendHandle;

#[derive(Debug)]
pub(super) struct ContainerHandle {
    pub(super) runtime: Arc<DockerRuntime>,
    pub(super) container: String,
    pub(super) death: watch::Receiver<Option<Death>>,
    /// `None` if the engine runs on another machine.
    pub(super) meters: Option<Meters>,
    /// How to start the zygote inside; none if kernels are not forked.
    pub(super) zygote: Option<ZygoteOrder>,
    /// Whether it was removed, or is being removed.
    pub(super) removed: AtomicBool,
    /// Kept as long as the sandbox lives: a later server listens there again.
    #[expect(dead_code, reason = "removed when dropped")]
    pub(super) transport: Option<Transport>,
}

#[async_trait]
impl BackendHandle for ContainerHandle {
    fn may_reopen(&self) -> bool {
        // Containers of an ordinary user run as that user, and the engine may not allow Landlock.
        !privileges::is_root()
    }

    async fn fork_python(
        &self,
        link: &Link,
        env: &[(String, String)],
        cwd: &str,
    ) -> Option<Result<(), RuntimeError>> {
        let zygote = self.zygote.clone()?;
        let language = Language::Python;
        let (env, cwd) = (env.to_vec(), cwd.to_owned());
        let fork = Call::ForkKernel { language, zygote, env, cwd };
        let forked = async {
            link.call(fork, &[]).await?;
            link.call(Call::AwaitKernel { language }, &[]).await.map(|_| ())
        };
        Some(forked.await)
    }

    fn meters(&self) -> Option<&Meters> {
        self.meters.as_ref()
    }

    fn oom_kills(&self) -> u64 {
        let of_all = self.death.borrow().is_some_and(|death| death.out_of_memory);
        u64::from(of_all).max(self.meters.as_ref().map_or(0, Meters::oom_kills))
    }

    async fn ended(&self) {
        let mut death = self.death.clone();
        // An error means that the runtime is ending.
        let _ = death.wait_for(Option::is_some).await;
    }

    fn kill(&self) {
        let (runtime, container) = (Arc::clone(&self.runtime), self.container.clone());
        // Outside of an event loop nothing can be done; the guest ends by itself without a host.
        if let Ok(event_loop) = tokio::runtime::Handle::try_current() {
            event_loop.spawn(async move { runtime.kill(&container).await });
        }
    }

    async fn remove(&self) {
        self.removed.store(true, Ordering::Relaxed);
        self.runtime.remove(&self.container).await;
    }
}

impl Drop for ContainerHandle {
    fn drop(&mut self) {
        if self.removed.load(Ordering::Relaxed) {
            return;
        }
        self.runtime.deaths.forget(&self.container);
        let (runtime, container) = (Arc::clone(&self.runtime), self.container.clone());
        if let Ok(event_loop) = tokio::runtime::Handle::try_current() {
            event_loop.spawn(async move { runtime.remove(&container).await });
        }
    }
}
