"""Reads the host's open sockets from /proc/net.

The lists show services and paths to attack. Stopped by a network namespace and a /proc inside it.
"""
import os

port = f":{int(os.environ['HOST_PORT']):04X} "
abstract = os.environ["HOST_ABSTRACT_SOCKET"].lstrip("@\0")
holes = [name for name in ("tcp", "tcp6") if port in open(f"/proc/net/{name}").read()]
unix = open("/proc/net/unix").read()
for name in (abstract, os.environ["HOST_UNIX_SOCKET"]):
    if name in unix:
        holes.append(f"unix socket {name}")
count = len(unix.splitlines()) - 1
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {count} unix sockets, none of the host")
