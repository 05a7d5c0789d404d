"""Raises its own priority: nice -20, real-time scheduling, real-time disk access.

Any of them would starve the host and the other sandboxes. Stopped by having no capability.
"""
import ctypes
import os

IOPRIO_SET = {"x86_64": 251, "aarch64": 30}[os.uname().machine]
IOPRIO_CLASS_RT = 1 << 13
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def realtime_disk():
    if libc.syscall(*map(ctypes.c_long, (IOPRIO_SET, 1, 0, IOPRIO_CLASS_RT))) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


ATTEMPTS = {
    "nice -20": lambda: os.setpriority(os.PRIO_PROCESS, 0, -20),
    "nice one step up": lambda: os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) - 1),
    "SCHED_FIFO": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
    "SCHED_RR": lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(99)),
    "real-time I/O": realtime_disk,
}
holes, refused = [], set()
for name, attempt in ATTEMPTS.items():
    try:
        attempt()
        holes.append(name)
    except OSError as error:
        refused.add(error.strerror)
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {sorted(refused)}")
