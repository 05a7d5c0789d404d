"""Looks for sockets that somebody listens on inside the sandbox, and connects to them.

The supervisor's own socket, if it can be reached from here, obeys whoever speaks its protocol. Stopped by
binding it where the sandbox cannot see it, or by checking who connects.
"""
import os
import socket
import stat

paths = []
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in ("/proc", "/usr", "/lib")]
    for path in [os.path.join(folder, name) for name in files]:
        try:
            if stat.S_ISSOCK(os.lstat(path).st_mode):
                paths.append(path)
        except OSError:
            continue
for line in open("/proc/net/unix").readlines()[1:]:
    name = line.split(maxsplit=7)[7].strip() if len(line.split()) > 7 else ""
    paths += ["\0" + name[1:]] if name.startswith("@") else [name] if name else []

holes = []
for path in paths:
    for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM):
        try:
            with socket.socket(socket.AF_UNIX, kind) as probe:
                probe.connect(path)
            holes.append(path)
        except OSError:
            continue
print(f"ESCAPED: connected to {holes}" if holes else f"CONTAINED: {len(paths)} sockets, none answered")
