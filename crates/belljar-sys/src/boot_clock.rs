//! A clock that no one can set and that goes on while the machine is suspended.

use std::time::Duration;

/// The time since the machine was started, by `CLOCK_BOOTTIME`. All processes of the machine read the same value.
#[must_use]
pub fn now() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for writing, and the kernel keeps no reference to it.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut time) };
    // Fails only for a clock that the kernel does not have, and it has this one since Linux 2.6.39.
    assert_eq!(failed, 0, "this kernel has no CLOCK_BOOTTIME");
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_never_goes_back() {
        let first = now();
        std::thread::sleep(Duration::from_millis(2));
        assert!(now() >= first + Duration::from_millis(2));
    }
}
