//! Restrictions that the guest of a container puts on itself before anything else runs.
//!
//! The engine has made the namespaces, mounts and limits, dropped the capabilities and installed its own seccomp filter. The
//! guest adds ours: only what both filters allow is allowed.

use std::fs::File;
use std::path::PathBuf;

use belljar_sys::apply::{self, StepError};
use belljar_sys::plan::Step;

use crate::native::plan::WRITABLE;
use crate::spec::paths;

/// Where a container sees the counters of its own cgroup: v2, then v1.
const OOM_EVENTS: [&str; 2] =
    ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];

/// What the guest needs afterwards.
#[derive(Debug)]
pub struct Sealed {
    /// The cgroup file in which Linux counts processes killed for memory.
    pub oom_events: Option<File>,
}

/// Restricts this process and everything it will start.
pub fn seal_guest() -> Result<Sealed, StepError> {
    // Opened before Landlock and the filter, so that their rules need not allow it.
    let oom_events = OOM_EVENTS.iter().find_map(|path| File::open(path).ok());
    let make = |path: &str| Step::MakeDir { path: path.into(), mode: 0o755, owner: None };
    apply::apply(
        &[
            make(paths::ARTIFACTS),
            make(paths::SESSION_DATA),
            Step::NoCoreDumps,
            Step::Undumpable,
            Step::NoNewPrivileges,
        ],
        &[],
    )?;
    let mut writable = WRITABLE.map(PathBuf::from).to_vec();
    // The mounts decide which of them are writable.
    writable.extend([paths::VOLUMES].map(PathBuf::from).into_iter().filter(|path| path.exists()));
    // An additional protection; the filters of some engines do not allow Landlock.
    let _ = apply::apply(&[Step::Landlock { writable }], &[]);
    apply::apply(&[Step::Seccomp], &[])?;
    Ok(Sealed { oom_events })
}
