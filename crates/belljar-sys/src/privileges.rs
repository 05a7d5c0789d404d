//! Drops privileges permanently.

use std::io;

use rustix::process::{DumpableBehavior, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, Gid, Uid};

/// Changes all user and group ids, and leaves all supplementary groups.
pub fn set_ids(uid: u32, gid: u32) -> io::Result<()> {
    // An id map of a single id, made without privileges, forbids setgroups. The groups are then not mapped inside, and
    // everything that they could open is outside of our root.
    match rustix::thread::set_thread_groups(&[]) {
        Ok(()) | Err(rustix::io::Errno::PERM) => {}
        Err(errno) => return Err(errno.into()),
    }
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid)?;
    Ok(rustix::thread::set_thread_res_uid(uid, uid, uid)?)
}

/// Makes it impossible to gain a capability again, even by executing a program that has some. Needs a capability itself, and
/// so comes before [`drop_capabilities`].
pub fn drop_bounding_set() -> io::Result<()> {
    for bit in 0..64 {
        // SAFETY: takes integers only.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, bit, 0, 0, 0) } != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                // Beyond the last capability that this kernel knows.
                Some(libc::EINVAL) if bit > 0 => Ok(()),
                _ => Err(error),
            };
        }
    }
    Ok(())
}

/// The capabilities that root needs to install packages in its own root file system.
const OF_INSTALLERS: [libc::c_int; 10] = [
    CAP_CHOWN,
    CAP_DAC_OVERRIDE,
    CAP_FOWNER,
    CAP_FSETID,
    CAP_KILL,
    CAP_SETGID,
    CAP_SETUID,
    CAP_SETPCAP,
    CAP_SYS_CHROOT,
    CAP_SETFCAP,
];
// The numbers that Linux gives them; libc does not name them.
const CAP_CHOWN: libc::c_int = 0;
const CAP_DAC_OVERRIDE: libc::c_int = 1;
const CAP_FOWNER: libc::c_int = 3;
const CAP_FSETID: libc::c_int = 4;
const CAP_KILL: libc::c_int = 5;
const CAP_SETGID: libc::c_int = 6;
const CAP_SETUID: libc::c_int = 7;
const CAP_SETPCAP: libc::c_int = 8;
const CAP_SYS_CHROOT: libc::c_int = 18;
const CAP_SETFCAP: libc::c_int = 31;

/// Programs that root executes from here on have only these capabilities.
pub fn limit_root() -> io::Result<()> {
    for bit in (0..64).filter(|bit| !OF_INSTALLERS.contains(bit)) {
        // SAFETY: takes integers only.
        if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, bit, 0, 0, 0) } != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                // Beyond the last capability that this kernel knows.
                Some(libc::EINVAL) => Ok(()),
                _ => Err(error),
            };
        }
    }
    Ok(())
}

/// Empties the ambient, inheritable, permitted and effective sets.
pub fn drop_capabilities() -> io::Result<()> {
    rustix::thread::clear_ambient_capability_set()?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    Ok(rustix::thread::set_capabilities(None, none)?)
}

pub fn set_no_new_privileges() -> io::Result<()> {
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// From here on only a process with privileges over our user namespace can read our memory, environment or descriptors through
/// `/proc`, or trace us.
pub fn become_undumpable() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

pub fn forbid_core_dumps() -> io::Result<()> {
    set_limit(Resource::Core, 0)
}

pub fn forbid_realtime() -> io::Result<()> {
    set_limit(Resource::Rtprio, 0)?;
    set_limit(Resource::Nice, 0)
}

pub fn limit_open_files(count: u64) -> io::Result<()> {
    set_limit(Resource::Nofile, count)
}

/// Raises the soft limit of open files to the hard one; a server of many sandboxes needs it.
pub fn raise_open_files() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // If it cannot be raised, the server runs with the soft limit.
    let _ = rustix::process::setrlimit(Resource::Nofile, raised);
}

fn set_limit(resource: Resource, value: u64) -> io::Result<()> {
    let hard = rustix::process::getrlimit(resource).maximum.unwrap_or(u64::MAX);
    let value = Some(value.min(hard));
    Ok(rustix::process::setrlimit(resource, Rlimit { current: value, maximum: value })?)
}

/// Whether this process has the capability that mounting needs, in its own user namespace.
#[must_use]
pub fn may_mount() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Whether this process is in a user namespace other than the machine's. Its inode is `PROC_USER_INIT_INO` of Linux.
#[must_use]
pub fn in_user_namespace() -> bool {
    const INITIAL: &str = "user:[4026531837]";
    std::fs::read_link("/proc/self/ns/user").is_ok_and(|name| name.as_os_str() != INITIAL)
}

#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The effective user and group of this process.
#[must_use]
pub fn own_ids() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}
