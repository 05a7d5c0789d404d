"""Types into a terminal with TIOCSTI, as if the person in front of it had.

On a shared terminal the host's shell would run those words. Stopped by seccomp. ENOTTY or EIO would mean
that the kernel, and not the filter, gave the answer.
"""
import ctypes
import errno
import os

IOCTL = {"x86_64": 16, "aarch64": 29}[os.uname().machine]
TIOCSTI = 0x5412
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


attempts = {f"descriptor {number}": syscall(IOCTL, number, TIOCSTI, b"x") for number in range(3)}
try:
    attempts["a new terminal"] = syscall(IOCTL, os.openpty()[1], TIOCSTI, b"x")
except OSError:
    pass  # No ptys here; the three above were tried.
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
