"""Makes the mount tree shared again, so that later mounts would propagate to the host.

Stopped by seccomp; besides, no mount of the sandbox may still have a peer outside it.
"""
import ctypes
import errno
import os

MOUNT = {"x86_64": 165, "aarch64": 40}[os.uname().machine]
MS_REC, MS_SHARED = 0x4000, 1 << 20
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


attempts = {"make / shared": syscall(MOUNT, None, b"/", None, MS_REC | MS_SHARED, None)}
for line in open("/proc/self/mountinfo"):
    fields = line.split()
    optional = fields[6 : fields.index("-")]
    if any(tag.startswith("shared:") for tag in optional):
        attempts[f"{fields[4]} is born shared"] = (optional, None)
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
