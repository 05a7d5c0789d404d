//! Recognises sandboxes whose server has died, by their names.

use std::io;

use belljar_sys::procfs;

/// Whether the process that made the sandbox with this name no longer exists. Names of sandboxes without an owner are
/// `PID.START.RANDOM.N`.
pub(crate) fn is_orphaned(name: &str) -> bool {
    let parts: Vec<&str> = name.split('.').collect();
    let [pid, started, _, _] = parts[..] else { return false };
    let (Ok(pid), Ok(started)) = (pid.parse::<u32>(), started.parse::<u64>()) else { return false };
    match procfs::start_time(pid) {
        Ok(now) => now != started,
        // Other errors prove nothing.
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_dead_processes_are_orphaned() {
        let pid = std::process::id();
        let started = procfs::start_time(pid).unwrap();
        assert!(!is_orphaned(&format!("{pid}.{started}.ab12.1")));
        assert!(is_orphaned(&format!("{pid}.{}.ab12.1", started + 1)), "the number was reused");
        for foreign in ["docker", "a.b.c.d", "1.2", "1.2.3.4.5", ""] {
            assert!(!is_orphaned(foreign), "{foreign}");
        }
    }
}
