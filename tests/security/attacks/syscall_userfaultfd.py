"""Opens a userfaultfd, with which exploits hold the kernel still in the middle of a copy.

Stopped by seccomp; and there is no /dev/userfaultfd.
"""
import ctypes
import errno
import os

USERFAULTFD = {"x86_64": 323, "aarch64": 282}[os.uname().machine]
UFFD_USER_MODE_ONLY = 1
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


attempts = {"userfaultfd": syscall(USERFAULTFD, UFFD_USER_MODE_ONLY), "full": syscall(USERFAULTFD, 0)}
if os.path.exists("/dev/userfaultfd"):
    attempts["/dev/userfaultfd"] = ("exists", None)
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
