//! Landlock: allows writing only below given paths, even if a mount were writable by mistake.
//!
//! The guest applies the rules to itself while its sandbox is built; everything that it starts inherits them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreatedAttr,
};

/// The newest version that we know; an older Linux enforces what it supports of it.
const KNOWN: ABI = ABI::V5;

/// Rights that do not change files: allowed everywhere by Landlock, and limited by mounts.
fn harmless() -> landlock::BitFlags<AccessFs> {
    AccessFs::from_read(KNOWN) | AccessFs::IoctlDev
}

/// The ruleset, or `None` if Linux has no Landlock.
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

/// Applies the rules to this process and everything it will start. Needs no_new_privs.
pub fn restrict_self(ruleset: impl AsFd) -> io::Result<()> {
    // SAFETY: takes an open descriptor and a number.
    let result =
        unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_fd().as_raw_fd(), 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The Landlock version of the running Linux, if it has Landlock.
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
