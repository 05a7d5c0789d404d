"""Calls the kernel by x32 numbers, which a filter that compares plain x86_64 numbers does not know.

Every refused call would be open again under its x32 name. Stopped by seccomp: the process is killed.
"""
# arch: x86_64
import ctypes
import os
import signal

X32_GETPID = 0x40000000 + 39
assert os.uname().machine == "x86_64"
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

child = os.fork()
if child == 0:
    answer = libc.syscall(ctypes.c_long(X32_GETPID))
    os._exit(200 if answer == os.getpid() else ctypes.get_errno())
_, status = os.waitpid(child, 0)

if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSYS:
    print("CONTAINED: killed by SIGSYS")
elif status == 1 << 8:
    print("CONTAINED: EPERM")
else:
    # ENOSYS (38) comes from a kernel built without x32: no harm here, but the filter did not look.
    print(f"ESCAPED: the filter passed an x32 number (wait status {status:#x})")
