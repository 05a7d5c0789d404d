"""Adds a swap file of its own and removes others: memory of all sandboxes would pass through it.

The file has no swap header, so even root would get no further than EINVAL. Stopped by seccomp.
"""
import ctypes
import errno
import os
import tempfile

SWAPON = {"x86_64": 167, "aarch64": 224}[os.uname().machine]
SWAPOFF = {"x86_64": 168, "aarch64": 225}[os.uname().machine]
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


with tempfile.NamedTemporaryFile() as file:
    file.write(bytes(1 << 16))
    file.flush()
    attempts = {
        "swapon": syscall(SWAPON, file.name.encode(), 0),
        "swapoff": syscall(SWAPOFF, file.name.encode()),
    }
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
