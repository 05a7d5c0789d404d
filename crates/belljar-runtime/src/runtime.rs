//! What makes sandboxes, whatever they are made of.

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::RuntimeError;
use crate::native::zygote::ZygoteState;
use crate::sandbox::{Handle, Sandbox};
use crate::spec::SandboxSpec;

/// A backend. What one gets from any of them is a [`Sandbox`], and behaves the same; what differs
/// is behind this trait and behind [`Body`](crate::sandbox::Body).
#[async_trait]
pub trait Runtime: fmt::Debug + Send + Sync + 'static {
    /// What people call it.
    fn backend(&self) -> &'static str;

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
}
