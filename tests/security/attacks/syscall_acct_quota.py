"""Turns process accounting into a file of its own, and speaks to the disk-quota interface.

Accounting would log every program the host runs. Q_SYNC without a device is open to everyone, so its
success shows a filter that lets quotactl through. Stopped by seccomp.
"""
import ctypes
import errno
import os
import tempfile

ACCT = {"x86_64": 163, "aarch64": 89}[os.uname().machine]
QUOTACTL = {"x86_64": 179, "aarch64": 60}[os.uname().machine]
Q_SYNC = 0x800001 << 8
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


with tempfile.NamedTemporaryFile() as log:
    attempts = {
        "acct": syscall(ACCT, log.name.encode()),
        "quotactl": syscall(QUOTACTL, Q_SYNC, None, 0, None),
    }
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
