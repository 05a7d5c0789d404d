"""Opens a fanotify group, which can watch whole file systems instead of single files.

Open to the unprivileged since Linux 5.13. Stopped by seccomp.
"""
import ctypes
import errno
import os

FANOTIFY_INIT = {"x86_64": 300, "aarch64": 262}[os.uname().machine]
FAN_REPORT_FID = 0x200
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


attempts = {"unprivileged": syscall(FANOTIFY_INIT, FAN_REPORT_FID, 0), "full": syscall(FANOTIFY_INIT, 4, 0)}
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
