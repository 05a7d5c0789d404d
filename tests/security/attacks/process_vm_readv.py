"""Reads and writes the memory of processes with process_vm_readv and process_vm_writev.

Against PID 1 this is full control. Against itself it is harmless and would work wherever the filter lets
the calls through, which is how we see that it does not. Stopped by seccomp.
"""
import ctypes
import errno
import os

READV = {"x86_64": 310, "aarch64": 270}[os.uname().machine]
WRITEV = {"x86_64": 311, "aarch64": 271}[os.uname().machine]
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


secret, copy = ctypes.create_string_buffer(b"memory"), ctypes.create_string_buffer(8)
local = (ctypes.c_uint64 * 2)(ctypes.addressof(copy), 6)
remote = (ctypes.c_uint64 * 2)(ctypes.addressof(secret), 6)
attempts = {
    f"{name} on {pid}": syscall(number, pid, local, 1, remote, 1, 0)
    for name, number in (("readv", READV), ("writev", WRITEV))
    for pid in (1, os.getpid())
}
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
