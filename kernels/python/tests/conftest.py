"""Drives the real main.py, as the guest and the host do: over sockets and pipes."""

from __future__ import annotations

import importlib.util
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MAIN = Path(__file__).resolve().parent.parent / "main.py"
TIMEOUT = 60.0


def has(module: Any) -> Any:
    return importlib.util.find_spec(module) is not None


needs_ipython = pytest.mark.skipif(not has("IPython"), reason="IPython is not installed")
needs_matplotlib = pytest.mark.skipif(not has("matplotlib"), reason="matplotlib is not installed")
needs_pandas = pytest.mark.skipif(not has("pandas"), reason="pandas is not installed")


class Result:
    """Everything one exec produced."""

    def __init__(self, messages: Any, done: Any, stdout: Any, stderr: Any) -> None:
        self.messages = messages
        self.done = done
        self.status = done["status"]
        self.exit_code = done["exit_code"]
        self.stdout = stdout
        self.stderr = stderr

    @property
    def bundles(self) -> Any:
        return [json.loads(body) for head, body in self.messages if head["op"] == "display"]

    @property
    def displays(self) -> Any:
        return self._data("display")

    @property
    def results(self) -> Any:
        return self._data("result")

    @property
    def text(self) -> Any:
        """text/plain of the result, or None."""
        return self.results[0]["text/plain"] if self.results else None

    @property
    def error(self) -> Any:
        return next((json.loads(body) for head, body in self.messages if head["op"] == "error"), None)

    def _data(self, kind: Any) -> Any:
        return [json.loads(body)["data"] for head, body in self.messages if head.get("kind") == kind]

    def __repr__(self) -> Any:
        return f"Result({self.done}, {self.messages}, stdout={self.stdout!r}, stderr={self.stderr!r})"


class Client:
    """The guest's side of one kernel: the control socket and the two pipes."""

    def __init__(self, control: Any, stdout: Any, stderr: Any) -> None:
        self.control = control
        self.control.settimeout(TIMEOUT)
        self.pipes = {"stdout": stdout, "stderr": stderr}
        self.output = {"stdout": b"", "stderr": b""}
        self.buffer = b""
        self.pid: int | None = None
        for fd in self.pipes.values():
            os.set_blocking(fd, False)
        # Pipes are small: a cell that prints much must find a reader, also while we wait for messages.
        self._pump_wanted = threading.Lock()
        threading.Thread(target=self._pump, daemon=True).start()

    def _pump(self) -> None:
        names = {fd: name for name, fd in self.pipes.items()}
        poll = select.poll()
        for fd in names:
            poll.register(fd, select.POLLIN)
        while names:
            for fd, _ in poll.poll():
                with self._pump_wanted:
                    if not self._read_pipe(names[fd], fd):
                        poll.unregister(fd)
                        del names[fd]

    def _read_pipe(self, name: str, fd: Any) -> Any:
        """Reads what is there now; False at the end."""
        while True:
            try:
                chunk = os.read(fd, 1 << 16)
            except BlockingIOError:
                return True
            except OSError:
                return False
            if not chunk:
                return False
            self.output[name] += chunk

    def take_output(self) -> Any:
        """What the pipes hold is older than the message just received: reading what is there is enough."""
        with self._pump_wanted:
            for name, fd in self.pipes.items():
                self._read_pipe(name, fd)
            taken, self.output = self.output, {"stdout": b"", "stderr": b""}
        return taken["stdout"].decode(), taken["stderr"].decode()

    def send(self, head: Any, body: Any = b"") -> None:
        encoded = json.dumps(head).encode()
        self.control.sendall(struct.pack("<II", len(encoded), len(body)) + encoded + body)

    def receive(self) -> Any:
        head_len, body_len = struct.unpack("<II", self._read(8))
        return json.loads(self._read(head_len)), self._read(body_len)

    def _read(self, size: Any) -> Any:
        while len(self.buffer) < size:
            chunk = self.control.recv(1 << 16)
            if not chunk:
                raise EOFError("the kernel closed the control socket")
            self.buffer += chunk
        taken, self.buffer = self.buffer[:size], self.buffer[size:]
        return taken

    def hello(self) -> Any:
        head, body = self.receive()
        assert head["op"] == "hello", (head, body)
        self.pid = head["pid"]
        return head

    def start(self, code: str | bytes, **options: Any) -> None:
        source = code if isinstance(code, bytes) else code.encode()
        self.send({"op": "exec", "exec_id": "x1", "echo": True, **options}, source)

    def finish(self) -> Any:
        messages: list[tuple[dict[str, Any], bytes]] = []
        while True:
            head, body = self.receive()
            if head["op"] == "done":
                return Result(messages, head, *self.take_output())
            messages.append((head, body))

    def run(self, code: str | bytes, **options: Any) -> Any:
        self.start(code, **options)
        return self.finish()

    def wait_for_stdout(self, text: str) -> None:
        self._wait_for("stdout", text)

    def wait_for_stderr(self, text: str) -> None:
        self._wait_for("stderr", text)

    def _wait_for(self, stream: str, text: str) -> None:
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            with self._pump_wanted:
                if text.encode() in self.output[stream]:
                    return
            time.sleep(0.002)
        raise AssertionError(f"no {text!r} in {self.output}")

    def close(self) -> None:
        self.control.close()


class KernelProcess(Client):
    """A kernel started directly, as the guest does inside a container."""

    def __init__(self, *arguments: Any, env: Any = None, python: Any = sys.executable, flags: Any = ()) -> None:
        ours, theirs = socket.socketpair()
        out_read, out_write = os.pipe()
        err_read, err_write = os.pipe()
        command = [python, "-I", *flags, str(MAIN), "kernel", "--fd", str(theirs.fileno()), *arguments]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out_write,
            stderr=err_write,
            pass_fds=[theirs.fileno()],
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **(env or {})},
            start_new_session=True,
        )
        theirs.close()
        os.close(out_write)
        os.close(err_write)
        super().__init__(ours, out_read, err_read)
        self.greeting = self.hello()

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)

    def shutdown(self) -> Any:
        self.send({"op": "shutdown"})
        code = self.process.wait(TIMEOUT)
        return code, *self.take_output()

    @property
    def python(self) -> str:
        """The interpreter that it runs in."""
        command = self.process.args
        assert isinstance(command, list)
        return str(command[0])

    def context_switches(self) -> list[str]:
        with open(f"/proc/{self.process.pid}/status") as file:
            return [line for line in file if "ctxt_switches" in line]

    def wait_until_idle(self) -> list[str]:
        """Waits until it does not run for a moment; returns its context switches by then."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            before = self.context_switches()
            time.sleep(0.05)
            if self.context_switches() == before:
                return before
        raise AssertionError("the kernel does not come to rest")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.close()


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[KernelProcess]:
    kernel = KernelProcess(env={"HOME": str(tmp_path)})
    yield kernel
    kernel.kill()


@pytest.fixture
def start_kernel() -> Iterator[Any]:
    """Starts kernels with arguments or environments of their own."""
    started = []

    def start(*arguments: Any, **options: Any) -> Any:
        started.append(KernelProcess(*arguments, **options))
        return started[-1]

    yield start
    for kernel in started:
        kernel.kill()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """`make test` prints and counts skipped tests at its end."""
    record = os.environ.get("SKIPPED_TESTS_FILE")
    if record and report.skipped and isinstance(report.longrepr, tuple):
        with open(record, "a") as file:
            file.write(f"{report.nodeid}: {report.longrepr[2].removeprefix('Skipped: ')}\n")
