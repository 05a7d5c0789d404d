"""Attaches a debugger to PID 1 and to a child of its own.

Tracing PID 1 means running code as the supervisor; tracing any process can rewrite its system calls.
Stopped by seccomp; PID 1 is besides not dumpable.
"""
import ctypes
import errno
import os
import signal
import time

PTRACE = {"x86_64": 101, "aarch64": 117}[os.uname().machine]
PTRACE_ATTACH, PTRACE_DETACH, PTRACE_SEIZE = 16, 17, 0x4206
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


child = os.fork()
if child == 0:
    time.sleep(30)
    os._exit(0)
attempts = {
    "seize PID 1": syscall(PTRACE, PTRACE_SEIZE, 1, 0, 0),
    "attach to PID 1": syscall(PTRACE, PTRACE_ATTACH, 1, 0, 0),
    "attach to a child": syscall(PTRACE, PTRACE_ATTACH, child, 0, 0),
}
syscall(PTRACE, PTRACE_DETACH, 1, 0, 0)
os.kill(child, signal.SIGKILL)
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
