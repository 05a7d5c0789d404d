"""The zygote: an interpreter with everything imported, which forks kernels into sandboxes.

    host                        zygote                              sandbox
     | configure {preload, seccomp} ->| imports, warms up, freezes
     |<- ready ...................... |
     | fork {id} + descriptors ------>| setns(pid), fork
     |                                |--- child: cgroups, setns(the rest), fork
     |                                |      |--- kernel: seals itself, says hello to the guest
     |                                |      x exits, so the guest, PID 1 in there, adopts the kernel
     |<- forked {id, ok} ............ |

The zygote is root over the sandboxes and reads nothing but its control socket. It stays single-threaded, since
fork() would leave a second thread's locks held for ever. It holds no secrets: whatever is in its memory can
be read by every kernel. The kernel seals itself completely before it looks at the first byte from the guest, and
one failing step ends it.
"""

from __future__ import annotations

import base64
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from types import ModuleType

from . import kernel, seal
from .wire import Channel, private_fd

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from typing import Any, NoReturn

# One packet of the control socket; an environment is a few kilobytes, a seccomp program one.
MAX_PACKET_BYTES = 1 << 18
# SCM_MAX_FD is 253; stdio, control, pidfd, landlock and a handful of cgroups are less than this.
MAX_PACKET_FDS = 64
# The process in between needs a few milliseconds. One that takes this long is stuck in a frozen cgroup or a dying
# namespace; it is in the sandbox's PID namespace, so it ends with the sandbox, which the host gives up now.
FORK_TIMEOUT_SECONDS = 10.0

# What the process in between reports when all went well; anything else is an error message.
_FORKED = b"ok"

# Descriptors a fork request must bring; "pidfd", "landlock" and any number of "cgroup" are optional.
_REQUIRED_FDS = frozenset(("control", "stdin", "stdout", "stderr"))
_KNOWN_FDS = _REQUIRED_FDS | {"pidfd", "landlock", "cgroup"}


def run_zygote(fd: int) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Inherited by what we fork, until it is sealed: processes in a sandbox must not look into it before.
    seal.hide_memory()
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
        # None until the host has configured us.
        self._seccomp: bytes | None = None
        # True once our children are born into a sandbox: then a request without a pidfd would put its kernel
        # into whichever sandbox came last.
        self._entered_sandbox = False

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

    def _handle(self, request: dict, fds: list[int]) -> dict:
        op = request.get("op")
        if op == "configure":
            return self._configure(request)
        if op == "fork":
            return self._fork(ForkRequest(request, fds))
        if op == "picture":
            return self._picture(request, fds)
        raise BadRequest(f"unknown op {op!r}")

    def _configure(self, request: dict) -> dict:
        if self._seccomp is not None:
            raise BadRequest("already configured")
        try:
            seccomp = base64.b64decode(request.get("seccomp", ""), validate=True)
            preload = [str(name) for name in request.get("preload", ())]
        except (TypeError, ValueError) as problem:
            raise BadRequest(f"bad configuration: {problem}") from None
        from . import warmup

        failed = warmup.preload(preload)
        warmup.forget_host()
        self._seccomp = seccomp
        # The system reaps our children, at once and without our waiting for any. As a zombie, the process that
        # has forked a kernel would still be in the sandbox's PID namespace, which cannot end before it is gone;
        # and one that is stuck in there must not hold us up.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        # Everything alive now is taken out of the collector's sight: a collection in a kernel would otherwise
        # write to the header of every object, and so copy every page.
        gc.collect()
        gc.freeze()
        warmup.use_huge_pages()
        return {
            "op": "ready",
            "python": "{}.{}.{}".format(*sys.version_info),
            "modules": [name for name in preload if name not in failed],
            "failed": failed,
            "threads": warmup.other_threads(),
            "rss_kib": warmup.resident_kib(),
        }

    def _picture(self, request: dict, fds: list[int]) -> dict:
        """Writes down what all kernels have in common, for those that are to be written down themselves."""
        if self._seccomp is None:
            raise BadRequest("not configured yet")
        if len(fds) != 1:
            raise BadRequest(f"{len(fds)} descriptors came, and not one")
        from . import frozen

        try:
            return {"op": "pictured", "bytes": frozen.write_common(int(request["layer"]), *fds)}
        except (KeyError, TypeError, ValueError, OSError, frozen.Refused) as problem:
            return {"op": "error", "error": f"failed to write the common picture: {problem}"}

    def _fork(self, request: ForkRequest) -> dict:
        if self._seccomp is None:
            raise BadRequest("not configured yet")
        answer: dict[str, Any] = {"op": "forked", "id": request.id, "ok": True}
        try:
            self._fork_kernel(request)
        except (OSError, ForkFailed) as problem:
            answer.update(ok=False, error=str(problem))
        return answer

    def _fork_kernel(self, request: ForkRequest) -> None:
        if request.pidfd is not None:
            seal.enter_namespaces(request.pidfd, seal.CLONE_NEWPID)
            self._entered_sandbox = True
        elif self._entered_sandbox:
            raise ForkFailed("no pidfd, from a zygote that forks into sandboxes")
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
        """The process between zygote and kernel: goes where the kernel shall live, forks it, and dies."""
        try:
            for cgroup in request.cgroups:
                os.write(cgroup, b"0")
            if request.pidfd is not None:
                seal.enter_namespaces(request.pidfd, seal.SANDBOX_NAMESPACES)
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
            kept = [channel.fileno()]
            landlock = None
            if request.landlock is not None:
                landlock = private_fd(request.landlock)
                kept.append(landlock)
            seal.close_other_fds(kept)
            self._seal(request, landlock)
            _adapt(request)
            _await_end_of(between)
            sealed = kernel.Kernel(channel, self._main)
        except BaseException as problem:
            if channel is not None:
                kernel.send_fatal(channel, problem)
            os._exit(kernel.EXIT_FATAL)
        try:
            sealed.serve()
        except BaseException:
            # serve() does not return, so this is a bug of ours. Whatever it is, the zygote's code above us on
            # the stack must not go on in here.
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(kernel.EXIT_FATAL)

    def _seal(self, request: ForkRequest, landlock: int | None) -> None:
        """Every step or none: whoever calls this ends the process when it raises.

        The memory becomes visible last. The sandbox may already run other processes of the same user, and one
        that writes to /proc/PID/mem of a half-sealed kernel would get its own code past the seccomp filter.
        """
        try:
            seal.drop_bounding_set()
        except PermissionError:
            # Inside a container the zygote may have no privilege to begin with. The bounding set is then out
            # of reach for us, and with no_new_privs also for whatever we execute.
            if request.pidfd is not None:
                raise
        seal.become(request.uid, request.gid)
        seal.drop_capabilities()
        seal.forbid_new_privileges()
        seal.forbid_core_dumps()
        if landlock is not None:
            seal.restrict_files(landlock)
            os.close(landlock)
        os.chdir(request.cwd)
        if self._seccomp:
            seal.filter_syscalls(self._seccomp)
        seal.show_memory()


class ForkFailed(Exception):
    """A kernel could not be forked; the reason is for the host."""


class ForkRequest:
    """What a fork packet says, checked."""

    def __init__(self, request: dict, fds: list[int]) -> None:
        names = request.get("fds")
        if not isinstance(names, list) or len(names) != len(fds):
            raise BadRequest(f"{len(fds)} descriptors came with the names {names!r}")
        if not _REQUIRED_FDS <= set(names) <= _KNOWN_FDS:
            raise BadRequest(f"wrong set of descriptors: {names!r}")
        by_name = dict(zip(names, fds))
        self.pidfd: int | None = by_name.get("pidfd")
        self.landlock: int | None = by_name.get("landlock")
        self.control, self.stdin = by_name["control"], by_name["stdin"]
        self.stdout, self.stderr = by_name["stdout"], by_name["stderr"]
        self.cgroups = [fd for name, fd in zip(names, fds) if name == "cgroup"]
        try:
            self.id = request["id"]
            self.uid, self.gid = int(request["uid"]), int(request["gid"])
            self.cwd = str(request["cwd"])
            self.env = {str(name): str(value) for name, value in request["env"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise BadRequest(f"bad fork request: {problem!r}") from None


def _parse(packet: bytes) -> dict:
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
        raise ForkFailed(f"entering the sandbox took longer than {FORK_TIMEOUT_SECONDS:.0f} s")
    report = os.read(pipe, 4096)
    if report != _FORKED:
        raise ForkFailed(report.decode("utf-8", "replace") or "the process on its way into the sandbox died")


def _await_end_of(process: int) -> None:
    """Waits until the process that forked us is gone. It has more rights than any code here must ever see beside it;
    it was about to exit, so this takes a moment at most."""
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


def _adapt(request: ForkRequest) -> None:
    """Gives the kernel what it must not share with us or other kernels: signals, environment, randomness."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # The zygote emptied its own environment before the first fork.
    os.environ.update(request.env)
    time.tzset()
    # `random` and OpenSSL notice a fork by themselves.
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        # A plain integer seed: the thorough way, seed(), would cost every kernel another 200 KiB.
        numpy_random.seed(int.from_bytes(os.urandom(4), "little"))
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        # The key that authenticates multiprocessing connections, drawn when the module was imported.
        processes.current_process().authkey = os.urandom(32)
