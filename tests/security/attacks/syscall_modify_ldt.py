"""Installs a segment descriptor of its own, a corner of x86 with a long list of kernel bugs.

Stopped by seccomp.
"""
# arch: x86_64
import ctypes
import errno
import os

assert os.uname().machine == "x86_64"
MODIFY_LDT = 154
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


descriptor = (ctypes.c_uint32 * 4)(0, 0, 0xFFFFF, 0x51)  # entry, base, limit, 32-bit present data segment
attempts = {"modify_ldt": syscall(MODIFY_LDT, 1, descriptor, 16), "read": syscall(MODIFY_LDT, 0, None, 0)}
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
