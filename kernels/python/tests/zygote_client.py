"""The host's side of the zygote, and a sandbox that is only namespaces."""

import array
import base64
import json
import os
import socket
import subprocess
import sys

from conftest import MAIN, TIMEOUT, Client

# Enters a set of new namespaces whose ids 0..65535 are 200000..265535 outside, forks PID 1 of them, and
# prints its pid as seen from outside. PID 1 reaps whatever it is given, as the guest would.
SANDBOX = r"""
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
ready_r, ready_w = os.pipe(); go_r, go_w = os.pipe()
outer = os.fork()
if outer == 0:
    if libc.unshare(0x7e020000) != 0:
        os.write(2, os.strerror(ctypes.get_errno()).encode()); os._exit(1)
    os.write(ready_w, b"x"); os.read(go_r, 1)
    os.setresgid(0, 0, 0); os.setresuid(0, 0, 0)
    inner = os.fork()
    if inner == 0:
        if libc.mount(b"proc", b"/proc", b"proc", 0, None) != 0:
            os.write(2, os.strerror(ctypes.get_errno()).encode()); os._exit(1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        os.write(ready_w, b"y")
        while True: signal.pause()
    os.write(ready_w, b"%d\n" % inner)
    os.waitpid(inner, 0); os._exit(0)
os.read(ready_r, 1)
for name in ("uid_map", "gid_map"):
    with open(f"/proc/{outer}/{name}", "w") as file: file.write("0 200000 65536")
os.write(go_w, b"g")
answer = b""
while b"y" not in answer or b"\n" not in answer: answer += os.read(ready_r, 64)
children = open(f"/proc/{outer}/task/{outer}/children").read().split()
print(children[0], flush=True)
sys.stdin.read()
os.kill(int(children[0]), signal.SIGKILL); os.waitpid(outer, 0)
"""


class Sandbox:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", SANDBOX], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        line = self.process.stdout.readline()
        assert line, "the sandbox did not start"
        self.init = int(line)
        self.pidfd = os.pidfd_open(self.init)

    def close(self):
        os.close(self.pidfd)
        self.process.stdin.close()
        self.process.wait(TIMEOUT)


class ZygoteProcess:
    def __init__(self, preload=(), seccomp=b"", env=None, configure=True):
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
            self.ready = self.request(
                {"op": "configure", "preload": list(preload), "seccomp": base64.b64encode(seccomp).decode()}
            )
            assert self.ready["op"] == "ready", self.ready

    def request(self, packet, fds=()):
        data = packet if isinstance(packet, bytes) else json.dumps(packet).encode()
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        self.control.sendmsg([data], rights)
        return json.loads(self.control.recv(1 << 18))

    def try_fork(self, sandbox=None, landlock=None, cgroups=(), uid=1000, gid=1000, cwd="/", env=None):
        """Returns the answer and the client of the kernel, which has not been greeted yet."""
        ours, theirs = socket.socketpair()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        named = [("control", theirs.fileno()), ("stdin", null), ("stdout", out_write), ("stderr", err_write)]
        if sandbox is not None:
            named.insert(0, ("pidfd", sandbox.pidfd))
        if landlock is not None:
            named.append(("landlock", landlock))
        named += [("cgroup", fd) for fd in cgroups]
        self.next_id += 1
        answer = self.request(
            {
                "op": "fork",
                "id": self.next_id,
                "fds": [name for name, _ in named],
                "uid": uid,
                "gid": gid,
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

    def fork(self, *arguments, **options):
        answer, client = self.try_fork(*arguments, **options)
        assert answer.get("ok"), answer
        client.hello()
        return client

    def close(self):
        self.control.close()
        return self.process.wait(TIMEOUT)
