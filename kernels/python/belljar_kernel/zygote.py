"""The zygote of a container: an interpreter with everything imported, which forks the kernels of its sandbox.

    guest                       zygote
     | configure {preload} ---------->| imports, warms up, freezes
     |<- ready ...................... |
     | fork {id} + descriptors ------>| fork
     |                                |--- child: fork
     |                                |      |--- kernel: says hello to the guest
     |                                |      x exits, so the guest, PID 1 in there, adopts the kernel
     |<- forked {id, ok} ............ |

It is a process of the sandbox like any other, with the rights that code there has. It stays single-threaded, since
fork() would leave a second thread's locks held for ever. Native sandboxes have none: see `preloaded`.
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

# One packet of the control socket; an environment is a few kilobytes.
MAX_PACKET_BYTES = 1 << 18
# SCM_MAX_FD is 253; stdio and control are less than this.
MAX_PACKET_FDS = 64
# The process in between needs a few milliseconds. One that takes this long is stuck.
FORK_TIMEOUT_SECONDS = 10.0

# What the process in between reports when all went well; anything else is an error message.
_FORKED = b"ok"

# Descriptors a fork request must bring.
_FDS = frozenset(("control", "stdin", "stdout", "stderr"))


def run_zygote(fd: int) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=fd)
    control.set_inheritable(False)
    main = kernel.new_main_module()
    kernel.prepare_imports(main, font_cache=None)
    Zygote(control, main).serve()


class BadRequest(Exception):
    """A packet that makes no sense. The zygote says so and goes on."""


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
        # The system reaps our children, at once and without our waiting for any.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        # Everything alive now is taken out of the collector's sight: a collection in a kernel would otherwise
        # write to the header of every object, and so copy every page.
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
        """The process between zygote and kernel: forks it, and dies."""
        try:
            if os.fork() == 0:
                self._be_kernel(request)
            os.write(report, _FORKED)
        except BaseException as problem:
            os.write(report, str(problem).encode("utf-8", "replace"))
        finally:
            # Whatever happens, the zygote's code above us on the stack must not go on in here.
            os._exit(0)

    def _be_kernel(self, request: ForkRequest) -> NoReturn:
        channel = None
        between = os.getppid()
        try:
            # The socket object must not close, some day, a descriptor that has got its number.
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
    """A kernel could not be forked; the reason is for the guest."""


class ForkRequest:
    """What a fork packet says, checked."""

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
    """Waits for what the process in between has to say, and raises it unless it is good."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    if not poll.poll(FORK_TIMEOUT_SECONDS * 1000):
        raise ForkFailed(f"forking took longer than {FORK_TIMEOUT_SECONDS:.0f} s")
    report = os.read(pipe, 4096)
    if report != _FORKED:
        raise ForkFailed(report.decode("utf-8", "replace") or "the process that was to fork the kernel died")


def _await_end_of(process: int) -> None:
    """Waits until the process that forked us is gone; it was about to exit, so this takes a moment at most."""
    deadline = time.monotonic() + FORK_TIMEOUT_SECONDS
    # Adopted already, we are a child of the guest.
    while process != 1:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        except PermissionError:
            # It is there, and not ours.
            pass
        if time.monotonic() > deadline:
            raise ForkFailed("the process that forked the kernel does not end")
        time.sleep(0.0001)
