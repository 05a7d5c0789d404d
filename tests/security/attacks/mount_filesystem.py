"""Mounts fresh file systems: an unmasked /proc, /sys, the cgroup tree, the host's device nodes.

Any of them would undo the masking of the sandbox. Stopped by seccomp and by having no capability.
"""
import ctypes
import errno
import os
import tempfile

MOUNT = {"x86_64": 165, "aarch64": 40}[os.uname().machine]
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


target = tempfile.mkdtemp().encode()
kinds = "proc sysfs cgroup2 cgroup devtmpfs devpts mqueue tmpfs overlay debugfs ext4 fuse".split()
attempts = {kind: syscall(MOUNT, b"none", target, kind.encode(), 0, None) for kind in kinds}
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
