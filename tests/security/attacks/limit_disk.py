"""Reserves much more space in every writable place than any sandbox should have.

Unlimited, one session fills the disk on which all others and the server live. Stopped by tmpfs sizes, a
quota on /session, or RLIMIT_FSIZE. Reserving writes nothing, and never takes more than half of a host disk.
"""
# expect: ok|oom
import ctypes
import errno
import os
import signal
import tempfile

GIB, GOAL, LARGEST_TMPFS = 1 << 30, 16 << 30, 4 << 30
libc = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

holes, refused = [], {}
for place in ("/session", "/work/artifacts", "/tmp", "/var/tmp", "/dev/shm", "/data", "/run", "/dev"):
    try:
        file = tempfile.TemporaryFile(dir=place)
    except OSError as error:
        refused[place] = errno.errorcode[error.errno]
        continue
    room = os.statvfs(place)
    large = room.f_blocks * room.f_frsize > LARGEST_TMPFS
    goal = min(GOAL, room.f_bavail * room.f_frsize // 2) if large else GOAL
    if libc.fallocate(file.fileno(), 0, ctypes.c_long(0), ctypes.c_long(goal)) == 0:
        holes.append(f"{goal // GIB} GiB in {place}")
    else:
        refused[place] = errno.errorcode[ctypes.get_errno()]
    file.close()
assert holes or "EOPNOTSUPP" not in refused.values(), f"space cannot be reserved here: {refused}"
print(f"ESCAPED: reserved {holes}" if holes else f"CONTAINED: {refused}")
