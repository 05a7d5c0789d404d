//! The differences between processor architectures: numbers of system calls and the audit number.
//!
//! Both tables are always compiled, so that a name in the seccomp policy is checked against both
//! wherever the tests run. A new architecture is one more file here.

#[cfg_attr(not(target_arch = "aarch64"), expect(dead_code, reason = "checked, not used, here"))]
pub(crate) mod aarch64;
#[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "checked, not used, here"))]
pub(crate) mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64 as native;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64 as native;
