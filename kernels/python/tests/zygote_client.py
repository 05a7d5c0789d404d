"""The guest's side of the zygote of a container."""

from __future__ import annotations

import array
import json
import os
import socket
import subprocess
import sys
from typing import Any

from conftest import MAIN, TIMEOUT, Client


class ZygoteProcess:
    def __init__(self, preload: Any = (), env: Any = None, configure: Any = True) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(TIMEOUT)
        self.process = subprocess.Popen(
            [sys.executable, "-I", str(MAIN), "zygote", "--fd", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={
                "PATH": os.environ["PATH"],
                "LANG": "C.UTF-8",
                "OPENBLAS_NUM_THREADS": "1",
                "OMP_NUM_THREADS": "1",
                "ARROW_DEFAULT_MEMORY_POOL": "system",
                **(env or {}),
            },
            cwd="/",
        )
        theirs.close()
        self.next_id = 0
        if configure:
            self.ready = self.request({"op": "configure", "preload": list(preload)})
            assert self.ready["op"] == "ready", self.ready

    def request(self, packet: Any, fds: Any = ()) -> Any:
        data = packet if isinstance(packet, bytes) else json.dumps(packet).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.control.sendmsg([data], rights)
        return json.loads(self.control.recv(1 << 18))

    def try_fork(self, cwd: Any = "/", env: Any = None) -> Any:
        """Returns the answer and the client of the kernel, which has not been greeted yet."""
        ours, theirs = socket.socketpair()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        named = [("control", theirs.fileno()), ("stdin", null), ("stdout", out_write), ("stderr", err_write)]
        self.next_id += 1
        answer = self.request(
            {
                "op": "fork",
                "id": self.next_id,
                "fds": [name for name, _ in named],
                "uid": os.getuid(),
                "gid": os.getgid(),
                "cwd": cwd,
                "env": env if env is not None else {"PATH": os.environ["PATH"], "HOME": "/tmp"},
            },
            [fd for _, fd in named],
        )
        theirs.close()
        for fd in (out_write, err_write, null):
            os.close(fd)
        assert answer.get("id", self.next_id) == self.next_id
        return answer, Client(ours, out_read, err_read)

    def fork(self, **options: Any) -> Any:
        answer, client = self.try_fork(**options)
        assert answer.get("ok"), answer
        client.hello()
        return client

    def close(self) -> Any:
        self.control.close()
        return self.process.wait(TIMEOUT)
