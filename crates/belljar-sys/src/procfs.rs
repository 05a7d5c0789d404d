//! Parses `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// How many threads this process has.
pub fn own_threads() -> io::Result<usize> {
    // The link count is enough on most kernels; counting the entries works on all of them.
    match fs::read_dir("/proc/self/task") {
        Ok(entries) => Ok(entries.count()),
        // Inside a new PID namespace whose /proc is not mounted yet there is nothing to read;
        // a process that just came out of clone has one thread.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(1),
        Err(error) => Err(error),
    }
}

/// The start time of a process in clock ticks since boot. Together with the pid it identifies a process.
pub fn start_time(pid: u32) -> io::Result<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    nth_after_name(&stat, 19).ok_or_else(|| io::Error::other("unexpected form of /proc/PID/stat"))
}

/// The user namespace of a process.
pub fn user_namespace(pid: u32) -> io::Result<OwnedFd> {
    Ok(fs::File::open(format!("/proc/{pid}/ns/user"))?.into())
}

/// Processor time that a process has used, all its threads together, to the hundredth of a second.
#[must_use]
pub fn cpu_time(pid: u32) -> Option<Duration> {
    // The unit of processor times in `/proc`, on every architecture that we support.
    const TICKS_PER_SECOND: u64 = 100;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks = nth_after_name(&stat, 11)? + nth_after_name(&stat, 12)?;
    Some(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// Every process we can see, with its parent.
#[must_use]
pub fn parents() -> BTreeMap<u32, u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return BTreeMap::new();
    };
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            // A process that ended meanwhile has no stat any more.
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            Some((pid, u32::try_from(nth_after_name(&stat, 1)?).ok()?))
        })
        .collect()
}

/// All descendants of `root`, nearest first.
#[must_use]
pub fn descendants(parents: &BTreeMap<u32, u32>, root: u32) -> Vec<u32> {
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&parent) = found.get(next) {
        next += 1;
        // `/proc` is not read in one step: Linux has no cycles, but our copy may have one.
        let children: Vec<u32> = parents
            .iter()
            .filter(|(pid, of)| **of == parent && !found.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        found.extend(children);
    }
    found.split_off(1)
}

/// Every process in this process group.
#[must_use]
pub fn group_members(group: u32) -> Vec<u32> {
    parents()
        .into_keys()
        .filter(|pid| {
            let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            nth_after_name(&stat, 2) == Some(u64::from(group))
        })
        .collect()
}

/// Whether the process has its own handler for this signal.
#[must_use]
pub fn catches(pid: u32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status_catches(&status, signal)
}

/// Whether the process was sent this signal and has not taken it yet.
#[must_use]
pub fn is_pending(pid: u32, signal: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    ["SigPnd:", "ShdPnd:"].iter().any(|mask| mask_has(&status, mask, signal))
}

fn status_catches(status: &str, signal: i32) -> bool {
    mask_has(status, "SigCgt:", signal)
}

/// Whether a mask of signals in `/proc/PID/status` has this signal.
fn mask_has(status: &str, mask: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix(mask));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    u32::try_from(signal - 1).is_ok_and(|bit| mask.checked_shr(bit).unwrap_or(0) & 1 == 1)
}

/// Whether both have the same command line, as a process and its forks do.
#[must_use]
pub fn same_command(one: u32, other: u32) -> bool {
    let command = |pid: u32| fs::read(format!("/proc/{pid}/cmdline")).ok();
    command(one).is_some_and(|ours| command(other) == Some(ours))
}

/// Whether this process was started with a variable of this value.
#[must_use]
pub(crate) fn has_variable(pid: u32, name: &str, value: &str) -> bool {
    let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
    let wanted = [name.as_bytes(), b"=", value.as_bytes()].concat();
    environment.split(|byte| *byte == 0).any(|variable| variable == wanted)
}

/// The command line of a process, in at most `most` characters; its name if it has no arguments.
#[must_use]
pub fn command_line(pid: u32, most: usize) -> Option<String> {
    let arguments = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut line = String::from_utf8_lossy(&arguments).replace('\0', " ");
    if line.trim().is_empty() {
        line = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    }
    Some(line.trim().chars().take(most).collect())
}

/// Whether this process has ended and was not reaped yet.
#[must_use]
pub fn is_zombie(pid: u32) -> bool {
    state(pid) == Some('Z')
}

/// Whether this process is stopped (SIGSTOP).
#[must_use]
pub fn is_stopped(pid: u32) -> bool {
    state(pid) == Some('T')
}

fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Field number `n` (from zero) after the name of the process, which may itself hold spaces and
/// parentheses.
fn nth_after_name(stat: &str, n: usize) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(n)?.parse().ok()
}

/// A number from `/proc/PID/status`, such as `VmRSS` in KiB or `Threads`.
#[must_use]
pub fn status_field(pid: u32, field: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Resets `VmHWM` of [`status_field`], the peak memory of a process.
pub fn forget_peak(pid: u32) -> io::Result<()> {
    fs::write(format!("/proc/{pid}/clear_refs"), "5")
}

/// Memory that only this process uses, in KiB: what its end would free.
#[must_use]
pub fn private_kib(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let sum = rollup
        .lines()
        .filter(|line| line.starts_with("Private_"))
        .filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok())
        .sum();
    Some(sum)
}

/// Whether something below a directory of this name is mounted in any mount namespace that we can read.
#[must_use]
pub fn is_mounted_anywhere(name: &str) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let has_it = |mounts: String| {
        // The fourth field is the directory that is shown, the fifth where.
        let fields = mounts.lines().filter_map(|line| line.split(' ').nth(3));
        fields.into_iter().any(|shown| shown.split('/').any(|part| part == name))
    };
    processes
        .filter(|entry| {
            entry.file_name().to_string_lossy().starts_with(|c: char| c.is_ascii_digit())
        })
        .filter_map(|entry| fs::read_to_string(entry.path().join("mountinfo")).ok())
        .any(has_it)
}

/// Changes with every boot of the machine.
#[must_use]
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// The running kernel, as `uname -r` prints it.
#[must_use]
pub fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_may_be_called_anything() {
        let stat = "7 (a) (b c) S 3 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12345 0 0";
        assert_eq!(nth_after_name(stat, 1), Some(3));
        assert_eq!(nth_after_name(stat, 19), Some(12345));
    }

    #[test]
    fn handlers_are_read_from_the_mask() {
        let status = "Name:\tbash\nSigIgn:\t0000000180384004\nSigCgt:\t000000004b813efb\n";
        assert!(status_catches(status, 2) && status_catches(status, 1));
        assert!(!status_catches(status, 3) && !status_catches(status, 9));
        assert!(
            !status_catches("", 2) && !status_catches(status, 0) && !status_catches(status, 65)
        );
    }

    #[test]
    fn we_are_in_our_own_group() {
        let own = std::process::id();
        let group = rustix::process::getpgrp().as_raw_pid().unsigned_abs();
        assert!(group_members(group).contains(&own));
        assert!(same_command(own, own) && !same_command(own, 1));
    }

    #[test]
    fn descendants_are_found_at_any_depth() {
        let parents = BTreeMap::from([(2, 1), (3, 2), (4, 3), (5, 1), (6, 5)]);
        assert_eq!(descendants(&parents, 2), [3, 4]);
        assert_eq!(descendants(&parents, 6), Vec::<u32>::new());
    }

    #[test]
    fn our_own_start_time_is_stable() {
        let pid = std::process::id();
        assert_eq!(start_time(pid).unwrap(), start_time(pid).unwrap());
    }
}
