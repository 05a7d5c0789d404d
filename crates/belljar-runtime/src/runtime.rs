//! What makes sandboxes, whatever they are made of.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use belljar_sys::{procfs, tree};

use crate::RuntimeError;
use crate::native::zygote::ZygoteState;
use crate::sandbox::{Handle, Sandbox};
use crate::spec::SandboxSpec;
use crate::volume::{OpenVolume, VolumePlace};

/// A backend. What one gets from any of them is a [`Sandbox`], and behaves the same; what differs
/// is behind this trait and behind [`BackendHandle`](crate::sandbox::BackendHandle).
#[async_trait]
pub trait Runtime: fmt::Debug + Send + Sync + 'static {
    /// What people call it, with what it runs sandboxes in, if that can be chosen.
    fn backend(&self) -> String;

    /// Whether it sets limits on memory, processes and processor time at all. Whether these hold is for the self-test to
    /// find out.
    fn sets_limits(&self) -> bool {
        true
    }

    /// Refuses an image that no sandbox could be made from, before anything is made.
    fn check_image(&self, name: &str) -> Result<(), RuntimeError> {
        let _ = name;
        Ok(())
    }

    /// A sandbox with its guest, and no kernel yet.
    async fn create(self: Arc<Self>, spec: &SandboxSpec) -> Result<Sandbox, RuntimeError>;

    /// Takes over a sandbox that an earlier server made, if it is still there and is the one we
    /// believe it to be.
    async fn adopt(
        self: Arc<Self>,
        handle: Handle,
        spec: SandboxSpec,
    ) -> Result<Sandbox, RuntimeError>;

    /// Removes what is left of a sandbox that could not be taken over.
    async fn discard(self: Arc<Self>, handle: &Handle);

    /// Ends and removes what is left of this owner's earlier sandboxes, but for those in `keep`.
    async fn reap(self: Arc<Self>, keep: HashSet<String>);

    /// Whether new kernels are forked from a warm interpreter that all sandboxes share; none, where
    /// they do not share one.
    fn zygote_state(&self) -> Option<ZygoteState>;

    /// Waits until kernels start as fast as they ever will.
    async fn warmed_up(&self);

    /// Ends what it does in the background; nothing of that is left afterwards. Sandboxes go on.
    async fn close(&self) {}
}

/// Makes everything in a session's directory belong to the sandbox that is about to get it: the
/// one before may have had other ids.
pub(crate) async fn give_to(
    directory: PathBuf,
    (uid, gid): (u32, u32),
) -> Result<(), RuntimeError> {
    let path = directory.clone();
    tokio::task::spawn_blocking(move || tree::give_to(&directory, uid, gid))
        .await
        .unwrap_or_else(|panic| Err(io::Error::other(panic)))
        .map_err(|cause| RuntimeError::Prepare { path, cause })
}

/// Everything a sandbox is to see below `/volumes`, in its order, for as long as the answer lives.
pub(crate) async fn open_volumes(spec: &SandboxSpec) -> Result<Vec<OpenVolume>, RuntimeError> {
    let volumes = spec.volumes.clone();
    if volumes.is_empty() {
        return Ok(Vec::new());
    }
    let open = move || volumes.iter().map(|volume| volume.place.open()).collect();
    tokio::task::spawn_blocking(open)
        .await
        .unwrap_or_else(|panic| Err(RuntimeError::Build(panic.to_string())))
}

/// The files of a session, for as long as the answer lives.
pub(crate) async fn open_place(place: &VolumePlace) -> Result<OpenVolume, RuntimeError> {
    let place = place.clone();
    tokio::task::spawn_blocking(move || place.open())
        .await
        .unwrap_or_else(|panic| Err(RuntimeError::Build(panic.to_string())))
}

/// Names are `PID.START.RANDOM.N`; the process that made this one no longer exists.
pub(crate) fn is_orphaned(name: &str) -> bool {
    let parts: Vec<&str> = name.split('.').collect();
    let [pid, started, _, _] = parts[..] else { return false };
    let (Ok(pid), Ok(started)) = (pid.parse::<u32>(), started.parse::<u64>()) else { return false };
    match procfs::start_time(pid) {
        Ok(now) => now != started,
        // Not being able to look is no proof.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_dead_processes_are_orphaned() {
        let pid = std::process::id();
        let started = procfs::start_time(pid).unwrap();
        assert!(!is_orphaned(&format!("{pid}.{started}.ab12.1")));
        assert!(is_orphaned(&format!("{pid}.{}.ab12.1", started + 1)), "the number was reused");
        for foreign in ["docker", "a.b.c.d", "1.2", "1.2.3.4.5", ""] {
            assert!(!is_orphaned(foreign), "{foreign}");
        }
    }
}
