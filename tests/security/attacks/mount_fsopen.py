"""Builds a mount with the new mount API (fsopen, fsconfig, fsmount, fspick).

Filters written against mount(2) alone forget it. Stopped by seccomp: all four are refused.
"""
import ctypes
import errno

FSOPEN = 430  # One number for all architectures.
FSCONFIG = 431
FSMOUNT = 432
FSPICK = 433
AT_FDCWD, FSCONFIG_CMD_CREATE = -100, 6
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


context = syscall(FSOPEN, b"tmpfs", 0)
attempts = {
    "fsopen": context,
    "fsconfig": syscall(FSCONFIG, context[0], FSCONFIG_CMD_CREATE, None, None, 0),
    "fsmount": syscall(FSMOUNT, context[0], 0, 0),
    "fspick": syscall(FSPICK, AT_FDCWD, b"/", 0),
}
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
