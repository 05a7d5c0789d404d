//! A native sandbox, seen from outside: a process, its cgroup, its block of ids.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use belljar_proto::exec::Language;
use belljar_proto::guest::Call;
use belljar_sys::cgroup::{Cgroup, Meters};
use belljar_sys::{landlock, process};
use tokio::io::unix::AsyncFd;

use super::staged::Staged;
use super::zygote::KernelFds;
use super::{BlockGuard, NativeRuntime, SocketGuard};
use crate::RuntimeError;
use crate::frozen::Common;
use crate::link::Link;
use crate::sandbox::Body;
use crate::spec::paths;

#[derive(Debug)]
pub(super) struct NativeBody {
    /// Which of our spawners made it; none, if it was an earlier server's. Its namespaces belong to
    /// that spawner, so only that one's zygote can enter them.
    pub(super) generation: Option<u64>,
    pub(super) process: AsyncFd<OwnedFd>,
    pub(super) runtime: Arc<NativeRuntime>,
    /// What it was made from; none, if that was an earlier server.
    pub(super) image: Option<Arc<Staged>>,
    /// In the order in which they must go: the cgroup when its processes have ended, the block of
    /// ids when nobody uses it any more.
    pub(super) cgroup: Option<Cgroup>,
    pub(super) _socket: SocketGuard,
    pub(super) _block: BlockGuard,
}

#[async_trait]
impl Body for NativeBody {
    async fn fork_python(
        &self,
        link: &Link,
        env: &[(String, String)],
    ) -> Option<Result<(), RuntimeError>> {
        let zygote = self.image.as_ref()?.warm_zygote()?;
        if self.generation != Some(zygote.generation()) {
            return None;
        }
        Some(
            async {
                // Forking takes as long as this does.
                self.runtime.anticipate_joining();
                let language = Language::Python;
                let ends = link.call(Call::PrepareKernel { language }, &[]).await?.fds;
                let cgroups = self.cgroup.as_ref().map_or(Ok(Vec::new()), Cgroup::procs)?;
                let fds = KernelFds {
                    pidfd: self.process.get_ref().as_fd(),
                    ends: &ends,
                    cgroups: &cgroups,
                };
                zygote.fork(fds, paths::SESSION, env).await?;
                drop(ends);
                link.call(Call::AwaitKernel { language }, &[]).await.map(|_| ())
            }
            .await,
        )
    }

    async fn common(&self, commons: &Path) -> Option<Arc<Common>> {
        self.image.as_ref()?.warm_zygote()?.common(commons).await
    }

    fn may_reopen(&self) -> bool {
        // With ids of its own it is somebody else; otherwise Landlock keeps it within its own tree.
        self.runtime.ids.is_none() && landlock::generation().is_none()
    }

    fn meters(&self) -> Option<&Meters> {
        self.cgroup.as_ref().map(Cgroup::meters)
    }

    async fn ended(&self) {
        // A pidfd becomes readable at the end of its process, and stays so.
        let _ = self.process.readable().await;
    }

    fn kill(&self) {
        let _ = process::kill_by_pidfd(self.process.get_ref());
    }
}

impl Drop for NativeBody {
    fn drop(&mut self) {
        self.kill();
    }
}
