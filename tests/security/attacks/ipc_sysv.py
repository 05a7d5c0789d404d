"""Attaches the host's System V shared memory (HOST_SHM_KEY) and lists the host's IPC objects.

Databases keep their buffers there. Stopped by an IPC namespace.
"""
import ctypes
import errno
import os

libc = ctypes.CDLL(None, use_errno=True)
key = int(os.environ["HOST_SHM_KEY"], 0)
holes = []
if libc.shmget(ctypes.c_int(key), ctypes.c_size_t(0), 0) >= 0:
    holes.append("the host's segment exists here")
reason = errno.errorcode.get(ctypes.get_errno())
for number in range(64):  # Ids can be guessed without a key; they are small on most hosts.
    if libc.shmctl(number, 2, ctypes.create_string_buffer(256)) >= 0:  # IPC_STAT
        holes.append(f"segment {number}")
for name in ("shm", "msg", "sem"):
    try:
        lines = open(f"/proc/sysvipc/{name}").readlines()[1:]
    except OSError:
        continue
    holes += [f"{name}: {line.strip()[:40]}" for line in lines]
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {reason}, and nothing listed")
