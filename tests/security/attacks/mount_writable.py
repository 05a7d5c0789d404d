"""Tries to write on every mount listed in mountinfo.

Only the sandbox's own places may be writable; anything else is shared with the host or other sandboxes.
Stopped by read-only mounts, file ownership and Landlock.
"""
import os
import stat

OWN_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/session", "/work")


def write_into(point):
    """Creates a file in a directory, opens anything else for writing."""
    if os.path.isdir(point):
        path = os.path.join(point, f"belljar-write-{os.getpid()}")
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        os.unlink(path)
    else:
        os.close(os.open(point, os.O_WRONLY | os.O_NONBLOCK))


points = {line.split()[4].encode().decode("unicode_escape") for line in open("/proc/self/mountinfo")}
holes, refused = [], set()
for point in sorted(points):
    own = any(point == place or point.startswith(place + "/") for place in OWN_PLACES)
    try:
        if own or stat.S_ISCHR(os.stat(point).st_mode):  # Device nodes: dev_contents.py judges them.
            continue
        write_into(point)
        holes.append(point)
    except OSError as error:
        refused.add(error.strerror)

assert holes or refused, "no mount was tried"
print(f"ESCAPED: writable: {holes}" if holes else f"CONTAINED: {sorted(refused)}")
