//! The trait that every backend implements. It knows none of them: callers choose one and start it.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use belljar_proto::zygote::Warm;

use crate::RuntimeError;
use crate::sandbox::{Handle, Sandbox};
use crate::spec::SandboxSpec;

/// A backend. Sandboxes of all backends are [`Sandbox`]es and behave the same; differences are behind this trait and
/// [`BackendHandle`](crate::sandbox::BackendHandle).
#[async_trait]
pub trait Runtime: fmt::Debug + Send + Sync + 'static {
    /// Its name for people, with the container runtime it uses, if one was chosen.
    fn backend(&self) -> String;

    /// Whether it sets limits on memory, processes and processor time. The self-test checks that they hold.
    fn sets_limits(&self) -> bool {
        true
    }

    /// Refuses an image from which no sandbox could be made.
    fn check_image(&self, name: &str) -> Result<(), RuntimeError> {
        let _ = name;
        Ok(())
    }

    /// Makes a sandbox with its guest, and no kernel yet.
    async fn create(self: Arc<Self>, spec: &SandboxSpec) -> Result<Sandbox, RuntimeError>;

    /// Takes over a sandbox that an earlier server made, if it still exists and is the same one.
    async fn adopt(
        self: Arc<Self>,
        handle: Handle,
        spec: SandboxSpec,
    ) -> Result<Sandbox, RuntimeError>;

    /// Removes what is left of a sandbox that could not be adopted.
    async fn discard(self: Arc<Self>, handle: &Handle);

    /// Ends and removes this owner's earlier sandboxes, except those in `keep`.
    async fn reap(self: Arc<Self>, keep: HashSet<String>);

    /// The state of the zygote that all sandboxes share; none if they do not share one.
    fn zygote_state(&self) -> Option<ZygoteState>;

    /// Waits until the zygote is warm, or has failed.
    async fn warmed_up(&self);

    /// Freezes or thaws all sandboxes of this server. A frozen sandbox keeps its memory and its connections, and does
    /// not run.
    async fn freeze_all(self: Arc<Self>, frozen: bool) -> Result<(), RuntimeError>;

    /// Ends all background work, and waits until it has ended. Sandboxes go on.
    async fn close(&self) {}
}

/// The state of a backend's shared zygote.
#[derive(Debug, Clone)]
pub enum ZygoteState {
    Warming,
    Warm(Warm),
    /// There is none; the reason, for people.
    Failed(String),
}
