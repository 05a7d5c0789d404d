"""Opens a performance counter on itself: a large, often broken part of the kernel and a side channel.

Stopped by seccomp, whatever the host's perf_event_paranoid says.
"""
import ctypes
import errno
import os

PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}[os.uname().machine]
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


attributes = (ctypes.c_uint64 * 16)()
attributes[0] = 1 | 128 << 32  # type PERF_TYPE_SOFTWARE, size 128
attributes[5] = 1 << 5 | 1 << 6  # exclude the kernel and the hypervisor: what even the unprivileged may ask
attempts = {"perf_event_open": syscall(PERF_EVENT_OPEN, attributes, 0, -1, -1, 0)}
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
