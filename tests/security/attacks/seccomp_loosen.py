"""Tries to weaken the running filter: switch it off, change its mode, stack an allow-all filter on it.

If the youngest filter won, every refusal in this directory would be gone. Stopped by the kernel: filters
only ever add up; here we prove that ours was there in the first place.
"""
import ctypes
import os

PR_SET_SECCOMP, STRICT, FILTER = 22, 1, 2
UNSHARE = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p)]


def attack():
    """Exits with 0 when the filter holds, 1 when namespaces can be made, 2 when there was no filter."""
    allow_all = (ctypes.c_uint32 * 2)(0x06, 0x7FFF0000)  # BPF_RET | BPF_K, SECCOMP_RET_ALLOW
    program = Program(1, ctypes.cast(allow_all, ctypes.c_void_p).value)
    libc.prctl(PR_SET_SECCOMP, 0, 0, 0, 0)
    libc.prctl(PR_SET_SECCOMP, FILTER, ctypes.byref(program), 0, 0)
    if libc.syscall(ctypes.c_long(UNSHARE), ctypes.c_long(0x10000000)) == 0:
        os._exit(1)
    # Accepted only where no filter was installed; the exit call below is then deadly.
    libc.prctl(PR_SET_SECCOMP, STRICT, 0, 0, 0)
    os._exit(0 if "Seccomp:\t2" in open("/proc/self/status").read() else 2)


before = open("/proc/self/status").read()
child = os.fork()
if child == 0:
    attack()
_, status = os.waitpid(child, 0)
if status == 0 and "Seccomp:\t2" in before:
    print("CONTAINED: still in filter mode, and unshare is still refused")
else:
    print(f"ESCAPED: the filter gave way or was never there (wait status {status})")
