"""The zygote of a container: an interpreter with everything imported, which forks the kernels of its sandbox.

    guest                       zygote
     | configure {preload} ---------->| imports, warms up, freezes
     |<- ready ...................... |
     | fork {id} + descriptors ------>| fork
     |                                |--- child: fork
     |                                |      |--- kernel: sends hello to the guest
     |                                |      x exits, so that the guest, PID 1, becomes the kernel's parent
     |<- forked {id, ok} ............ |

It has the rights of any code in the sandbox. It stays single-threaded, because fork() would leave the locks of other
threads held for ever. Native sandboxes have no zygote: see `preloaded`.
"""

from __future__ import annotations

import gc
import json
import os
import select
import signal
import socket
import time
from types import ModuleType

from . import kernel, renewal, seal
from .wire import Channel

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from typing import Any, NoReturn

# The largest packet of the control socket; an environment has a few kilobytes.
MAX_PACKET_BYTES = 1 << 18
# The most descriptors of a packet; SCM_MAX_FD is 253.
MAX_PACKET_FDS = 64
# Seconds after which the intermediate process counts as stuck; it needs a few milliseconds.
FORK_TIMEOUT_SECONDS = 10.0

# What the intermediate process reports on success; anything else is an error message.
_FORKED = b"ok"

# Descriptors that a fork request must have.
_FDS = frozenset(("control", "stdin", "stdout", "stderr"))


def run_zygote(fd: int) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=fd)
    control.set_inheritable(False)
    main = kernel.new_main_module()
    kernel.prepare_imports(main, font_cache=None)
    Zygote(control, main).serve()


class BadRequest(Exception):
    """An invalid packet. The zygote answers with the error and goes on."""


class Zygote:
    def __init__(self, control: socket.socket, main: ModuleType) -> None:
        self._control = control
        self._main = main
        self._configured = False

    def serve(self) -> NoReturn:
        while True:
            packet, fds, flags, _ = socket.recv_fds(
                self._control, MAX_PACKET_BYTES, MAX_PACKET_FDS, socket.MSG_CMSG_CLOEXEC
            )
            if not packet and not fds:
                os._exit(0)
            try:
                if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                    raise BadRequest("the packet is too big")
                answer = self._handle(_parse(packet), fds)
            except BadRequest as problem:
                answer = {"op": "error", "error": str(problem)}
            finally:
                for received in fds:
                    os.close(received)
            try:
                self._control.send(json.dumps(answer).encode())
            except BrokenPipeError:
                os._exit(0)

    def _handle(self, request: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        op = request.get("op")
        if op == "configure":
            return self._configure(request)
        if op == "fork":
            return self._fork(ForkRequest(request, fds))
        raise BadRequest(f"unknown op {op!r}")

    def _configure(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._configured:
            raise BadRequest("already configured")
        try:
            preload = [str(name) for name in request.get("preload", ())]
        except TypeError as problem:
            raise BadRequest(f"bad configuration: {problem}") from None
        from . import warmup

        report = warmup.warm_up(preload)
        self._configured = True
        # The system reaps our children.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        # Exempts all existing objects from collections: a collection would write to the header of every object, and so
        # copy every page.
        gc.collect()
        gc.freeze()
        warmup.use_huge_pages()
        return {"op": "ready", **report}

    def _fork(self, request: ForkRequest) -> dict[str, Any]:
        if not self._configured:
            raise BadRequest("not configured yet")
        answer: dict[str, Any] = {"op": "forked", "id": request.id, "ok": True}
        try:
            self._fork_kernel(request)
        except (OSError, ForkFailed) as problem:
            answer.update(ok=False, error=str(problem))
        return answer

    def _fork_kernel(self, request: ForkRequest) -> None:
        report, report_write = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                if seal.fork_without_hooks() == 0:
                    self._be_child(request, report_write)
            finally:
                os.close(report_write)
            _await_report(report)
        finally:
            os.close(report)

    def _be_child(self, request: ForkRequest, report: int) -> NoReturn:
        """The intermediate process: forks the kernel, and exits."""
        try:
            if os.fork() == 0:
                self._be_kernel(request)
            os.write(report, _FORKED)
        except BaseException as problem:
            os.write(report, str(problem).encode("utf-8", "replace"))
        finally:
            # The zygote's code above on the stack must never continue in this process.
            os._exit(0)

    def _be_kernel(self, request: ForkRequest) -> NoReturn:
        channel = None
        between = os.getppid()
        try:
            # Otherwise the socket object may later close another file with the same number.
            self._control.detach()
            os.setsid()
            for target, fd in enumerate((request.stdin, request.stdout, request.stderr)):
                os.dup2(fd, target)
            channel = Channel(request.control)
            seal.close_other_fds([channel.fileno()])
            os.chdir(request.cwd)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            renewal.adapt(request.env)
            _await_end_of(between)
            ready = kernel.Kernel(channel, self._main)
        except BaseException as problem:
            if channel is not None:
                kernel.send_fatal(channel, problem)
            os._exit(kernel.EXIT_FATAL)
        kernel.serve_to_the_end(ready)


class ForkFailed(Exception):
    """A kernel could not be forked; the message is for the guest."""


class ForkRequest:
    """A validated fork request."""

    def __init__(self, request: dict[str, Any], fds: list[int]) -> None:
        names = request.get("fds")
        if not isinstance(names, list) or len(names) != len(fds):
            raise BadRequest(f"{len(fds)} descriptors came with the names {names!r}")
        if set(names) != _FDS:
            raise BadRequest(f"wrong set of descriptors: {names!r}")
        by_name = dict(zip(names, fds))
        self.control, self.stdin = by_name["control"], by_name["stdin"]
        self.stdout, self.stderr = by_name["stdout"], by_name["stderr"]
        try:
            self.id = request["id"]
            self.cwd = str(request["cwd"])
            self.env = {str(name): str(value) for name, value in request["env"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise BadRequest(f"bad fork request: {problem!r}") from None


def _parse(packet: bytes) -> dict[str, Any]:
    try:
        request = json.loads(packet)
    except ValueError as problem:
        raise BadRequest(f"not JSON: {problem}") from None
    if not isinstance(request, dict):
        raise BadRequest("not a JSON object")
    return request


def _await_report(pipe: int) -> None:
    """Waits for the report of the intermediate process, and raises its error."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if not poll.poll(FORK_TIMEOUT_SECONDS * 1000):
        raise ForkFailed(f"forking took longer than {FORK_TIMEOUT_SECONDS:.0f} s")
    report = os.read(pipe, 4096)
    if report != _FORKED:
        raise ForkFailed(report.decode("utf-8", "replace") or "the process that forks the kernel died")


def _await_end_of(process: int) -> None:
    """Waits until the intermediate process has exited, which takes a moment at most."""
    deadline = time.monotonic() + FORK_TIMEOUT_SECONDS
    # The guest is our parent already.
    while process != 1:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        except PermissionError:
            # It exists, and belongs to another user.
            pass
        if time.monotonic() > deadline:
            raise ForkFailed("the process that forked the kernel does not end")
        time.sleep(0.0001)
