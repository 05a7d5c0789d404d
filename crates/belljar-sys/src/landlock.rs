//! Landlock: writing is possible only below the paths that are meant for it, even if a mount were
//! writable by mistake.
//!
//! The guest puts itself under the rules while its sandbox is built, and everything that it starts inherits them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr,
};

/// The newest generation whose meaning we know; an older kernel enforces what it can of it.
const KNOWN: ABI = ABI::V5;

/// Rights that are not about changing files: allowed everywhere, the mounts decide.
fn harmless() -> landlock::BitFlags<AccessFs> {
    AccessFs::from_read(KNOWN) | AccessFs::IoctlDev
}

/// The ruleset, or `None` where the kernel has no Landlock.
pub fn ruleset(writable: &[PathBuf]) -> io::Result<Option<OwnedFd>> {
    let all = AccessFs::from_all(KNOWN);
    let mut rules = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(all)
        .and_then(Ruleset::create)
        .map_err(io::Error::other)?;
    let everywhere = PathFd::new("/").map_err(io::Error::other)?;
    rules = rules.add_rule(PathBeneath::new(everywhere, harmless())).map_err(io::Error::other)?;
    for path in writable {
        // A path that this sandbox does not have needs no rule.
        let Ok(fd) = PathFd::new(path) else { continue };
        rules = rules.add_rule(PathBeneath::new(fd, all)).map_err(io::Error::other)?;
    }
    Ok(rules.into())
}

/// Puts this process and all it will start under the rules. Needs no_new_privs.
pub fn restrict_self(ruleset: impl AsFd) -> io::Result<()> {
    // SAFETY: takes an open descriptor and a number.
    let result =
        unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_fd().as_raw_fd(), 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The generation of Landlock the running kernel speaks, if any.
#[must_use]
pub fn generation() -> Option<u32> {
    const VERSION: libc::c_long = 1;
    // SAFETY: with the version flag the call takes no memory at all.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0usize,
            VERSION,
        )
    };
    u32::try_from(version).ok().filter(|&v| v > 0)
}
