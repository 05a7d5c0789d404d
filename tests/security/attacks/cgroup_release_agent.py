"""Mounts a version 1 cgroup hierarchy and names a release agent (CVE-2022-0492).

The agent is a program that the kernel starts as root on the host. Stopped by seccomp, no capability,
no new user namespace.
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


target = tempfile.mkdtemp()
attempts = {}
for options in (b"memory", b"rdma", b"pids", b"none,name=belljar"):
    attempts[options.decode()] = syscall(MOUNT, b"cgroup", target.encode(), b"cgroup", 0, options)
agent = os.path.join(target, "release_agent")
if os.path.exists(agent):
    attempts["release_agent"] = ("present" + (", writable" if os.access(agent, os.W_OK) else ""), None)
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
