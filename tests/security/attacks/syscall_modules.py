"""Loads and unloads kernel modules: code of ours in the kernel. Stopped by seccomp and no capability.

The image is garbage, so even root would get no further than ENOEXEC.
"""
import ctypes
import errno
import os
import tempfile

INIT_MODULE = {"x86_64": 175, "aarch64": 105}[os.uname().machine]
FINIT_MODULE = {"x86_64": 313, "aarch64": 273}[os.uname().machine]
DELETE_MODULE = {"x86_64": 176, "aarch64": 106}[os.uname().machine]
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


with tempfile.TemporaryFile() as image:
    image.write(b"not a module")
    image.flush()
    attempts = {
        "init_module": syscall(INIT_MODULE, b"not a module", 12, b""),
        "finit_module": syscall(FINIT_MODULE, image.fileno(), b"", 0),
        "delete_module": syscall(DELETE_MODULE, b"belljar_no_such_module", 0x800),
    }
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
