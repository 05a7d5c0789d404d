"""Remounts every read-only mount as writable.

/usr is the machine's own: one writable mount would let the code change programs the host runs.
Stopped by seccomp; below it by having no capability and by the locked mount flags of a user namespace.
"""
import ctypes
import errno
import os

MOUNT = {"x86_64": 165, "aarch64": 40}[os.uname().machine]
MS_REMOUNT, MS_BIND = 0x20, 0x1000
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


attempts = {}
for line in open("/proc/self/mountinfo"):
    point, options = line.split()[4:6]
    path = point.encode().decode("unicode_escape").encode("latin-1")
    if "ro" in options.split(","):
        attempts[point] = syscall(MOUNT, None, path, None, MS_REMOUNT | MS_BIND, None)
attempts["/ itself"] = syscall(MOUNT, None, b"/", None, MS_REMOUNT | MS_BIND, None)
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
