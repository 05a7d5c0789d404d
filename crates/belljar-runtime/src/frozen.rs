//! Kernels as files: a Python kernel written down while it lives, and another one made of what was
//! written.
//!
//! What a kernel is made of is an index and layers of pages. A layer has only what changed since an
//! earlier index, which a new one goes on referring to: so a second picture of the same kernel is
//! small, and any number of kernels can be made of one.

use std::fs::File;

use belljar_proto::guest::FreezeReport;

use crate::{RuntimeError, Sandbox};

/// Pages of memory in a file, by a number that whoever keeps it has chosen.
#[derive(Debug)]
pub struct Layer {
    pub id: u64,
    pub pages: File,
}

/// A kernel that was written down: its index, and the layers that it speaks of. Those that the
/// runtime keeps itself (what all kernels have in common) need not be among them.
#[derive(Debug)]
pub struct Picture {
    pub index: File,
    pub layers: Vec<Layer>,
}

impl Sandbox {
    /// Writes the Python kernel down: what changed since `before` into the (empty) layer, and its
    /// index into the (empty) file `index`. The kernel goes on afterwards. With `force` also what
    /// cannot be kept (threads, connections) is left out, and reported as lost, where it would
    /// otherwise be refused.
    pub async fn freeze(
        &self,
        layer: &Layer,
        index: &File,
        before: Option<&Picture>,
        force: bool,
    ) -> Result<FreezeReport, RuntimeError> {
        let _ = (layer, index, before, force);
        Err(RuntimeError::OldGuest)
    }

    /// Gives this sandbox, which has no kernel or a fresh one, the kernel of a picture.
    pub async fn thaw(&self, picture: &Picture) -> Result<(), RuntimeError> {
        let _ = picture;
        Err(RuntimeError::OldGuest)
    }
}
