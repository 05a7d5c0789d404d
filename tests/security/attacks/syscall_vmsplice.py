"""Gives its own pages to a pipe with vmsplice, the base of several page-cache and refcount exploits.

Stopped by seccomp.
"""
import ctypes
import errno
import os

VMSPLICE = {"x86_64": 278, "aarch64": 75}[os.uname().machine]
SPLICE_F_GIFT = 8
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


reader, writer = os.pipe()
page = ctypes.create_string_buffer(4096)
vector = (ctypes.c_uint64 * 2)(ctypes.addressof(page), 4096)
attempts = {"vmsplice": syscall(VMSPLICE, writer, vector, 1, SPLICE_F_GIFT)}
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
