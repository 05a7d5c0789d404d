"""Bind-mounts directories over each other, to uncover what a mask hides or to move a writable tree.

A bind of / elsewhere shows the tree below the masks. Stopped by seccomp and by having no capability.
"""
import ctypes
import errno
import os
import tempfile

MOUNT = {"x86_64": 165, "aarch64": 40}[os.uname().machine]
MS_BIND, MS_REC, MS_MOVE = 0x1000, 0x4000, 0x2000
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


target = tempfile.mkdtemp().encode()
attempts = {
    "bind of /": syscall(MOUNT, b"/", target, None, MS_BIND, None),
    "recursive bind of /": syscall(MOUNT, b"/", target, None, MS_BIND | MS_REC, None),
    "bind of /proc": syscall(MOUNT, b"/proc", target, None, MS_BIND, None),
    "move of /proc": syscall(MOUNT, b"/proc", target, None, MS_MOVE, None),
}
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
