//! The host's handle of a native sandbox: a process, its cgroup, its block of ids.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use belljar_sys::cgroup::{Cgroup, Meters};
use belljar_sys::{landlock, process};
use tokio::io::unix::AsyncFd;

use super::staged::StagedImage;
use super::{BlockGuard, SocketGuard, zygote};
use crate::RuntimeError;
use crate::link::Link;
use crate::sandbox::BackendHandle;
use crate::snapshot::Common;

#[derive(Debug)]
pub(super) struct NativeHandle {
    pub(super) process: AsyncFd<OwnedFd>,
    /// Its image. If an earlier server made the sandbox, this may be a guess.
    pub(super) image: Arc<StagedImage>,
    /// Dropped in this order: the cgroup after its processes have ended, and the block of ids when nothing uses it any more.
    pub(super) cgroup: Option<Cgroup>,
    pub(super) _socket: SocketGuard,
    pub(super) block: BlockGuard,
}

#[async_trait]
impl BackendHandle for NativeHandle {
    async fn fork_python(
        &self,
        link: &Link,
        env: &[(String, String)],
        cwd: &str,
    ) -> Option<Result<(), RuntimeError>> {
        let zygote = self.image.warm_zygote()?;
        if !zygote::is_understood_by(link) {
            return None;
        }
        Some(zygote.start_kernel(link, env, cwd).await)
    }

    async fn common(&self, commons: &Path) -> Option<Arc<Common>> {
        self.image.warm_zygote()?.common(commons).await
    }

    fn may_reopen(&self) -> bool {
        // With its own ids it is another user; otherwise Landlock forbids it.
        self.block.block.is_none() && landlock::generation().is_none()
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

impl Drop for NativeHandle {
    fn drop(&mut self) {
        self.kill();
    }
}
