"""Sets the machine's clock (to the time it already has), which would break tokens, logs and leases.

Stopped by seccomp and by having no capability.
"""
import ctypes
import errno
import os
import time

CLOCK_SETTIME = {"x86_64": 227, "aarch64": 112}[os.uname().machine]
SETTIMEOFDAY = {"x86_64": 164, "aarch64": 170}[os.uname().machine]
CLOCK_ADJTIME = {"x86_64": 305, "aarch64": 266}[os.uname().machine]
ADJ_TICK = 0x4000
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


seconds, nanoseconds = divmod(time.time_ns(), 10**9)
adjustment = (ctypes.c_long * 26)(ADJ_TICK)
adjustment[11] = 10_000  # The default tick: a change that changes nothing.
attempts = {
    "clock_settime": syscall(CLOCK_SETTIME, 0, (ctypes.c_long * 2)(seconds, nanoseconds)),
    "settimeofday": syscall(SETTIMEOFDAY, (ctypes.c_long * 2)(seconds, nanoseconds // 1000), None),
    "clock_adjtime": syscall(CLOCK_ADJTIME, 0, adjustment),
}
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
