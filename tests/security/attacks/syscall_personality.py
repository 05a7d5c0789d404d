"""Turns off address randomisation and makes all readable memory executable for everything it starts.

Weakens later victims inside the sandbox and reaches rarely used kernel paths. Stopped by seccomp.
"""
import ctypes
import errno
import os

PERSONALITY = {"x86_64": 135, "aarch64": 92}[os.uname().machine]
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


attempts = {
    "ADDR_NO_RANDOMIZE": syscall(PERSONALITY, 0x0040000),
    "READ_IMPLIES_EXEC": syscall(PERSONALITY, 0x0400000),
    "MMAP_PAGE_ZERO": syscall(PERSONALITY, 0x0100000),
}
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
