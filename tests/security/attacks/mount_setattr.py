"""Clears the read-only flag of /usr and / with mount_setattr.

The new API's counterpart of a remount; forgotten by filters older than Linux 5.12. Stopped by seccomp.
"""
import ctypes
import errno

MOUNT_SETATTR = 442  # One number for all architectures.
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 1
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


attributes = (ctypes.c_uint64 * 4)(0, MOUNT_ATTR_RDONLY, 0, 0)  # set, clear, propagation, user namespace
attempts = {
    path.decode(): syscall(MOUNT_SETATTR, AT_FDCWD, path, AT_RECURSIVE, attributes, 32)
    for path in (b"/", b"/usr", b"/proc")
}
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
