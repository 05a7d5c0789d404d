//! The kernel lives in this room: `unsafe`, `libc` and the parsing of `/proc` and `/sys` are found
//! here and nowhere else in the project. Every other crate forbids unsafe code.
//!
//! * [`plan`] describes a sandbox as data, [`apply`] carries it out in one loop;
//! * [`process`] starts, finds and ends processes; [`channel`] passes messages with descriptors,
//!   [`untrusted`] closes those that sandboxes sent;
//! * [`cgroup`] holds limits on v2, v1 and hybrid hosts, [`ids`] the blocks of user ids;
//! * [`seccomp`], [`landlock`] and [`privileges`] are the walls a process builds around itself;
//! * [`pty`] makes terminals, [`tty`] borrows the one a person sits at;
//! * [`route`] tells which addresses are this machine's own, and which its neighbours';
//! * [`loop_device`] makes block devices of files, for volumes;
//! * [`rootfs`] unpacks root file systems that others made;
//! * [`tree`] reads directories that hostile code wrote, [`probe`] attacks limits on purpose;
//! * [`glob`] matches names, [`watch`] tells of changes;
//! * [`visit`] does with files what their owner asks, [`file`] gets written ones onto the disk,
//!   [`file_lock`] locks them.

pub mod apply;
mod arch;
pub mod cgroup;
pub mod channel;
pub mod file;
pub mod file_lock;
pub mod glob;
pub mod ids;
pub mod landlock;
pub mod loop_device;
pub mod mount;
pub mod plan;
pub mod privileges;
pub mod probe;
pub mod process;
pub mod procfs;
pub mod pty;
pub mod rootfs;
pub mod route;
pub mod sealed;
pub mod seccomp;
pub mod tree;
pub mod tty;
pub mod untrusted;
pub mod user_files;
pub mod watch;
pub mod xattr;
