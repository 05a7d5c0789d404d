"""Connects to an abstract UNIX socket of the host (HOST_ABSTRACT_SOCKET).

Abstract names ignore the file system: containerd, X11 and D-Bus were reached that way (CVE-2020-15257).
Stopped by a network namespace.
"""
import errno
import os
import socket

name = "\0" + os.environ["HOST_ABSTRACT_SOCKET"].lstrip("@\0")
holes, refused = [], set()
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
    try:
        with socket.socket(socket.AF_UNIX, kind) as probe:
            probe.connect(name)
        holes.append(kind.name)
    except OSError as error:
        refused.add(errno.errorcode.get(error.errno, str(error)))
print(f"ESCAPED: connected by {holes}" if holes else f"CONTAINED: {sorted(refused)}")
