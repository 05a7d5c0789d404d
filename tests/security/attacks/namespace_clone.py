"""Creates a child in new namespaces with clone, one flag at a time, and with stray high bits set.

The same prize as unshare. The kernel looks at the low 32 bits only, a careless filter at all 64.
Stopped by seccomp's test of the flag bits.
"""
import ctypes
import errno
import os

CLONE = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
SIGCHLD = 17
FLAGS = {
    "user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000,
    "ipc": 0x08000000, "uts": 0x04000000, "cgroup": 0x02000000, "user and high bits": 0x5_10000000,
}
REFUSALS = ("EPERM", "EACCES", "ENOSYS")
libc = ctypes.PyDLL(None, use_errno=True)  # Keeps the interpreter's lock, so that the child owns it too.
libc.syscall.restype = ctypes.c_long


def clone(flags):
    result = libc.syscall(ctypes.c_long(CLONE), ctypes.c_long(flags | SIGCHLD), *[ctypes.c_long(0)] * 4)
    if result == 0:
        os._exit(0)
    if result > 0:
        os.waitpid(result, 0)
    return result, errno.errorcode.get(ctypes.get_errno()) if result < 0 else None


assert clone(0)[0] > 0, "a plain clone must work, or the attempts below prove nothing"
attempts = {name: clone(flag) for name, flag in FLAGS.items()}
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
