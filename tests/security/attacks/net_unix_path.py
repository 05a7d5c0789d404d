"""Connects to a UNIX socket in the host's file system (HOST_UNIX_SOCKET), directly and by magic links.

A network namespace does not stop this; only a root of the sandbox's own does.
"""
import errno
import os
import socket

path = os.environ["HOST_UNIX_SOCKET"]
holes, refused = [], set()
for way in ("", "/proc/self/root", "/proc/1/root", "/proc/self/cwd/../../../.."):
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(way + path)
        holes.append(way + path)
    except OSError as error:
        refused.add(errno.errorcode.get(error.errno, str(error)))
print(f"ESCAPED: connected to {holes}" if holes else f"CONTAINED: {sorted(refused)}")
