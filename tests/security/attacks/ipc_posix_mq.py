"""Opens the host's POSIX message queue (HOST_MQ) and looks into /dev/mqueue and /dev/shm.

Stopped by an IPC namespace and a /dev/shm of the sandbox's own.
"""
import ctypes
import errno
import os

MQ_OPEN = {"x86_64": 240, "aarch64": 180}[os.uname().machine]
name = os.environ["HOST_MQ"].lstrip("/").encode()
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long

holes = []
if libc.syscall(ctypes.c_long(MQ_OPEN), name, ctypes.c_long(os.O_RDONLY), ctypes.c_long(0), None) >= 0:
    holes.append("opened the host's queue")
reason = errno.errorcode.get(ctypes.get_errno())
for place in ("/dev/mqueue", "/dev/shm"):
    if os.path.isdir(place) and os.listdir(place):
        holes.append(f"{place} holds {os.listdir(place)[:5]}")
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {reason}, and nothing in /dev/shm")
