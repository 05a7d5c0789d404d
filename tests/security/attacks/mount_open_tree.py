"""Clones the mount tree into a detached copy with open_tree, free of what happens to the original.

A detached tree can be walked below the masks and moved elsewhere. Stopped by seccomp, also for the
younger call open_tree_attr.
"""
import ctypes
import errno

OPEN_TREE = 428  # One number for all architectures.
OPEN_TREE_ATTR = 467
AT_FDCWD, OPEN_TREE_CLONE, AT_RECURSIVE = -100, 1, 0x8000
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


attributes = (ctypes.c_uint64 * 4)()
attempts = {
    "open_tree": syscall(OPEN_TREE, AT_FDCWD, b"/", OPEN_TREE_CLONE),
    "open_tree, recursive": syscall(OPEN_TREE, AT_FDCWD, b"/", OPEN_TREE_CLONE | AT_RECURSIVE),
    "open_tree_attr": syscall(OPEN_TREE_ATTR, AT_FDCWD, b"/", OPEN_TREE_CLONE, attributes, 32),
}
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
