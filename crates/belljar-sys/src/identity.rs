//! The identity of a file: how to notice that it was changed or replaced.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::Stat;

/// Distinguishes one state of a file from another. Times are in nanoseconds since the epoch; times beyond the
/// range, which code may set, wrap around.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    pub size: u64,
    pub inode: u64,
    /// When anything about the file changed last. Code cannot choose this time.
    pub changed_ns: i64,
    /// When its content changed last, or the time that code has set.
    pub modified_ns: i64,
}

impl Identity {
    /// The identity of an open file.
    pub fn of_file(file: impl AsFd) -> io::Result<Identity> {
        Ok(Identity::of(&rustix::fs::fstat(file)?))
    }

    pub(crate) fn of(stat: &Stat) -> Identity {
        let ns = |seconds: i64, ns| {
            seconds.wrapping_mul(1_000_000_000).wrapping_add(i64::try_from(ns).unwrap_or(0))
        };
        Identity {
            size: u64::try_from(stat.st_size).unwrap_or(0),
            inode: stat.st_ino,
            changed_ns: ns(stat.st_ctime, stat.st_ctime_nsec),
            modified_ns: ns(stat.st_mtime, stat.st_mtime_nsec),
        }
    }
}

/// Sets the time of the last write to a file, as [`Identity`] has it.
pub fn set_modified(file: impl AsFd, modified_ns: i64) -> io::Result<()> {
    const SECOND: i64 = 1_000_000_000;
    let (tv_sec, tv_nsec) = (modified_ns.div_euclid(SECOND), modified_ns.rem_euclid(SECOND));
    let time = rustix::fs::Timespec { tv_sec, tv_nsec };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    Ok(rustix::fs::futimens(file, &times)?)
}
