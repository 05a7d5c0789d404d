"""Talks to reboot(2) with the true magic numbers, asking for the mildest thing: Ctrl-Alt-Del off.

Who may ask this may ask for a restart. Stopped by seccomp and by having no capability.
"""
import ctypes
import errno
import os

REBOOT = {"x86_64": 169, "aarch64": 142}[os.uname().machine]
MAGIC, MAGIC2, CAD_OFF = 0xFEE1DEAD, 672274793, 0
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


attempts = {"reboot": syscall(REBOOT, MAGIC, MAGIC2, CAD_OFF, None)}
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
