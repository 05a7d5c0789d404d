//! What the guest of a container does to itself before anything else runs in it.
//!
//! The engine has made the namespaces, the mounts and the limits, dropped the capabilities and put
//! its own filter of system calls on us. Ours goes on top: the two together allow what both allow.

use std::fs::File;
use std::path::PathBuf;

use belljar_sys::apply::{self, StepError};
use belljar_sys::plan::Step;

use crate::native::plan::WRITABLE;
use crate::spec::paths;

/// Where a container sees the counters of its own cgroup: v2, then v1.
const OOM_EVENTS: [&str; 2] =
    ["/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"];

/// What the guest keeps of it.
#[derive(Debug)]
pub struct Sealed {
    /// Where the kernel counts processes it killed for memory.
    pub oom_events: Option<File>,
}

/// Seals this process and everything it will start.
pub fn seal_guest() -> Result<Sealed, StepError> {
    // Before Landlock, which would not mind, and the filter, which would not either: but a file
    // opened now needs no place in their rules.
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
    // Which of them can be written to is for the mounts to say.
    writable.extend([paths::VOLUMES].map(PathBuf::from).into_iter().filter(|path| path.exists()));
    // A second wall; an engine whose filter does not know of it yet takes it away.
    let _ = apply::apply(&[Step::Landlock { writable }], &[]);
    apply::apply(&[Step::Seccomp], &[])?;
    Ok(Sealed { oom_events })
}
