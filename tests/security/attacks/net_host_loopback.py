"""Connects to the harness's listener on the host's 127.0.0.1 (HOST_PORT), by every name of loopback.

Databases and admin pages of the person's machine trust loopback. Stopped by a network namespace.
"""
import errno
import os
import socket

port = int(os.environ["HOST_PORT"])
ADDRESSES = ["127.0.0.1", "127.0.0.2", "0.0.0.0", "localhost", "::1", "::", "::ffff:127.0.0.1"]

holes, refused = [], set()
for address in ADDRESSES:
    try:
        socket.create_connection((address, port), timeout=3).close()
        holes.append(address)
    except socket.gaierror:
        refused.add("no such name")
    except OSError as error:
        refused.add(errno.errorcode.get(error.errno, str(error)))
print(f"ESCAPED: connected to {holes}" if holes else f"CONTAINED: {sorted(refused)}")
