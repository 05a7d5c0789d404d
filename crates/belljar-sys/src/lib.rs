//! The interface to Linux: `unsafe`, `libc` and the parsing of `/proc` and `/sys`. No other crate has them, except
//! `belljar-snapshot`; all others forbid unsafe code.
//!
//! * [`plan`] describes a sandbox as data, [`apply`] carries it out in one loop, [`isolated`] runs a program in it;
//! * [`process`] starts, finds and ends processes; [`channel`] passes messages with descriptors; [`signals`] waits for
//!   signals;
//! * [`descriptor`] checks descriptors that sandboxes sent, [`untrusted`] closes them;
//! * [`cgroup`] sets limits on v2, v1 and hybrid hosts and freezes sandboxes, [`ids`] reserves blocks of user ids;
//! * [`seccomp`], [`landlock`] and [`privileges`] take rights from the calling process;
//! * [`pty`] makes pseudo-terminals, [`tty`] controls the user's terminal;
//! * [`route`] finds out which addresses belong to this machine and its local networks;
//! * [`loop_device`] makes block devices of files, for volumes;
//! * [`rootfs`] unpacks root file systems of images;
//! * [`tree`] reads directories that hostile code wrote, [`probe`] tries to exceed limits;
//! * [`glob`] matches names, [`watch`] reports changes of files;
//! * [`user_files`] handles files with the rights of the sandbox's user, [`file`] writes files durably,
//!   [`file_lock`] locks them;
//! * [`boot_clock`] measures time for leases;
//! * [`wake_class`] says on which machines a snapshot of a kernel can be restored.

pub mod apply;
mod arch;
pub mod boot_clock;
pub mod cgroup;
pub mod channel;
pub mod descriptor;
pub mod file;
pub mod file_lock;
pub mod glob;
mod identity;
pub mod ids;
pub mod isolated;
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
pub mod signals;
pub mod tree;
pub mod tty;
pub mod untrusted;
pub mod user_files;
pub mod wake_class;
pub mod watch;
pub mod xattr;
