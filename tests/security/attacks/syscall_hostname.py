"""Changes the host and domain name, which would be the host's own without a UTS namespace.

Stopped by seccomp and by having no capability.
"""
import ctypes
import errno
import os

SETHOSTNAME = {"x86_64": 170, "aarch64": 161}[os.uname().machine]
SETDOMAINNAME = {"x86_64": 171, "aarch64": 162}[os.uname().machine]
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


attempts = {
    "sethostname": syscall(SETHOSTNAME, b"pwned", 5),
    "setdomainname": syscall(SETDOMAINNAME, b"pwned", 5),
}
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
