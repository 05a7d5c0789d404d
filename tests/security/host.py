"""The host as an attacker would like it: secrets and open doors, right outside the sandbox.

Started by the harness. Prints one JSON object with what the attacks need to know, then waits for the end
of its standard input and takes everything down again.
"""

import ctypes
import hashlib
import json
import os
import pathlib
import secrets
import socket
import sys
import tempfile

IPC_CREAT, IPC_RMID = 0o1000, 0
libc = ctypes.CDLL(None, use_errno=True)

canary = sys.argv[1]
name = f"belljar-canary-{secrets.token_hex(4)}"
canaries = [pathlib.Path(tempfile.gettempdir()) / name, pathlib.Path.home() / f".{name}"]
for path in canaries:
    path.write_text(canary)

tcp = socket.create_server(("127.0.0.1", 0))
abstract = socket.socket(socket.AF_UNIX)
abstract.bind(f"\0{name}")
abstract.listen()
by_path = socket.socket(socket.AF_UNIX)
socket_path = pathlib.Path(tempfile.gettempdir()) / f"{name}.sock"
by_path.bind(str(socket_path))
socket_path.chmod(0o777)
by_path.listen()

shm_key = secrets.randbelow(1 << 30) + 1
shm = libc.shmget(shm_key, 4096, IPC_CREAT | 0o666)
assert shm >= 0, os.strerror(ctypes.get_errno())

queue = f"/{name}"
libc.mq_open.restype = ctypes.c_int
mq = libc.mq_open(queue.encode(), os.O_CREAT | os.O_RDWR, 0o666, None)
assert mq >= 0, os.strerror(ctypes.get_errno())

try:
    print(
        json.dumps(
            {
                "CANARY_SHA256": hashlib.sha256(canary.encode()).hexdigest(),
                "HOST_ABSTRACT_SOCKET": name,
                "HOST_CANARY_PATHS": ":".join(map(str, canaries)),
                "HOST_HOSTNAME": socket.gethostname(),
                "HOST_MQ": queue,
                "HOST_PID": str(os.getpid()),
                "HOST_PORT": str(tcp.getsockname()[1]),
                "HOST_SHM_KEY": str(shm_key),
                "HOST_UID_MAX": str(max(1000, os.getuid())),
                "HOST_UNIX_SOCKET": str(socket_path),
            }
        ),
        flush=True,
    )
    sys.stdin.read()
finally:
    for path in [*canaries, socket_path]:
        path.unlink(missing_ok=True)
    libc.shmctl(shm, IPC_RMID, None)
    libc.mq_unlink(queue.encode())
