"""The kernel as files, and files as the kernel: what the host asks for over a line of its own.

    host                                          kernel
     | freeze {layer, before, layers} + files ---->| checks, writes itself into a pipe
     |== pipe ====================================>| (the host puts it into files: we never hold one for writing)
     | kept -------------------------------------->| maps large pieces from the new file
     |<- {bytes} or {refused} .................... | goes on
     |
     | thaw {layers} + files --------------------->| of another sandbox, fresh: becomes the one that was written down
     |                                             | and goes on where that one was: inside `freeze`
     |<- {thawed, lost} .......................... |

Memory is the business of a shared object (`crates/belljar-snapshot`). Here is everything else: what cannot be kept is
found before anything is written, and files that were open are opened again afterwards. Sockets, pipes, threads and
children belong to a world that goes on without us, so they are refused, or with `force` left out and reported.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import socket
import stat
import sys
import threading

from . import aio, seal

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from typing import Any

    from .kernel import Kernel

MAX_PACKET_BYTES = 1 << 17
MAX_PACKET_FDS = 64
# As many layers as an index may speak of.
MAX_LAYERS = 64
# What a report has room for.
MAX_WORDS = 20

# Where a kernel that is about to be replaced puts what its successor needs. Below what `wire` calls private.
CONTROL_AT = 950
LINE_AT = 951

_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARY = os.path.join(_FOLDER, "belljar_freeze.so")

# Of the two structures below; see crates/belljar-snapshot/src/lib.rs, which compares it and their sizes.
_REQUEST_VERSION = 2

# Flags of a request, see crates/belljar-snapshot/src/freeze.rs.
_SHARE = 2
_LAID_OUT = 4

_THAWED = 1
# Registered by the library with at least this length, whatever it says of what it uses.
_RSEQ_LEAST = 32

_ACCESS = os.O_RDONLY | os.O_WRONLY | os.O_RDWR
_KEPT_FLAGS = _ACCESS | os.O_APPEND | os.O_NONBLOCK


class _Layer(ctypes.Structure):
    _fields_ = [("id", ctypes.c_uint64), ("fd", ctypes.c_uint64)]


class _Freeze(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint64),
        ("version", ctypes.c_uint64),
        ("stream", ctypes.c_uint64),
        ("pages", ctypes.c_uint64),
        ("line", ctypes.c_uint64),
        ("layer", ctypes.c_uint64),
        ("before", ctypes.c_int64),
        ("layers", ctypes.POINTER(_Layer)),
        ("layers_len", ctypes.c_uint64),
        ("flags", ctypes.c_uint64),
        ("last", ctypes.c_uint64),
        ("rseq_offset", ctypes.c_int64),
        ("rseq_len", ctypes.c_uint64),
        ("own", ctypes.c_char_p),
        ("own_len", ctypes.c_uint64),
        ("written", ctypes.c_uint64),
        ("used", ctypes.c_uint64 * MAX_LAYERS),
        ("used_len", ctypes.c_uint64),
        ("problem", ctypes.c_char * 256),
    ]


class _Thaw(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_uint64),
        ("version", ctypes.c_uint64),
        ("index", ctypes.c_uint64),
        ("layers", ctypes.POINTER(_Layer)),
        ("layers_len", ctypes.c_uint64),
        ("rseq_offset", ctypes.c_int64),
        ("rseq_len", ctypes.c_uint64),
        ("problem", ctypes.c_char * 256),
    ]


class Refused(Exception):
    """Why the kernel cannot be kept, each reason in words."""

    # Nothing would be gained by leaving parts out.
    entirely = True

    def __init__(self, *reasons: str) -> None:
        super().__init__(*reasons)
        self.reasons = list(reasons)

    def answer(self) -> dict[str, Any]:
        return {"refused": _few(self.reasons), "entirely": self.entirely}


class InTheWay(Refused):
    """Parts of the kernel that cannot be kept; without them it can."""

    entirely = False


class _Native:
    """The shared object, and what it wants to know of the C library."""

    def __init__(self) -> None:
        # Holding the interpreter's lock: nobody else may run meanwhile.
        library = ctypes.PyDLL(_LIBRARY)
        self.freeze, self.thaw = library.belljar_freeze, library.belljar_thaw
        for function in (self.freeze, self.thaw):
            function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_void_p]
        libc = ctypes.CDLL(None)
        try:
            self.rseq_offset = ctypes.c_ssize_t.in_dll(libc, "__rseq_offset").value
            used = ctypes.c_uint.in_dll(libc, "__rseq_size").value
            self.rseq_len = max(used, _RSEQ_LEAST) if used else 0
        except ValueError:
            # Another library, or an older one, which does not register.
            self.rseq_offset = self.rseq_len = 0


_native: _Native | None = None
# The layer of the last picture of this process.
_last = 0


def prepare() -> None:
    """Loads the shared object."""
    global _native
    if _native is None:
        _native = _Native()


def write_common(layer: int, stream: int) -> int | None:
    """Writes down what kernels begin with. How many bytes that is; None in a kernel that begins with it."""
    if platform.machine() != "x86_64":
        raise Refused(f"kernels cannot be written down on this processor ({platform.machine()})")
    if _other_tasks():
        raise Refused("a thread besides the main one is alive")
    prepare()
    done = _write(layer, stream, None, -1, [], _LAID_OUT)
    if done is None:
        forget_last()
        return None
    return int(done["bytes"])


def forget_last() -> None:
    """From now on every page is compared with an earlier picture.

    Pages that are shared with another process are otherwise known not to have changed since the last picture of this
    one. That is not so in kernels that begin with memory of another process, nor after a fork: then all are.
    """
    global _last
    _last = 0


def talk(line: socket.socket, kernel: Kernel) -> None:
    """Does what the host asks for, once."""
    with line:
        packet, fds, _flags, _ = socket.recv_fds(line, MAX_PACKET_BYTES, MAX_PACKET_FDS, socket.MSG_CMSG_CLOEXEC)
        answer: dict[str, Any] | None = {}
        try:
            request = json.loads(packet)
            if request["op"] == "freeze":
                answer = _freeze(request, fds, kernel, line)
            else:
                _thaw(request, fds, kernel, line)
        except Refused as refused:
            answer = refused.answer()
        except Exception as error:
            answer = Refused(f"{type(error).__name__}: {error}").answer()
        if answer is None:
            # Another process now, in which these numbers are somebody else's.
            line.detach()
            return
        for fd in fds:
            os.close(fd)
        if answer:
            say(line, answer)


def say(line: socket.socket, answer: dict[str, Any]) -> None:
    try:
        line.send(json.dumps(answer).encode("utf-8", "replace"))
    except OSError:
        # Who asked has gone.
        pass


def _freeze(request: dict[str, Any], fds: list[int], kernel: Kernel, line: socket.socket) -> dict[str, Any] | None:
    """Writes this kernel down, and what is to be said of it. None in the kernel that was made of it."""
    if platform.machine() != "x86_64":
        raise Refused(f"kernels cannot be written down on this processor ({platform.machine()})")
    prepare()
    stream, *rest = fds
    share = (rest.pop(0), line.fileno()) if request.get("share") else None
    before = rest.pop(0) if request.get("before") else -1
    layers = list(zip(request["layers"], rest, strict=True))
    ours = [*fds, line.fileno(), *kernel.descriptors(), *aio.descriptors()]
    files, lost = _open_files({*ours, 0, 1, 2})
    lost += _threads() + _children()
    # Tasks would stand still for as long as the kernel is files, which the user's code must know of. They are kept.
    paused = [f"asyncio task {name} is pending" for name in aio.pending_names()]
    if (lost or paused) and not request.get("force"):
        raise InTheWay(*lost, *paused)
    aio.stop()
    world = _World(files, lost)
    quiet = not _other_tasks()
    # Libraries with threads of their own know how to go on without them after a fork.
    child = 0 if quiet else seal.fork_without_hooks()
    if not quiet and not child:
        forget_last()
    if child:
        _, status = os.waitpid(child, 0)
        if status:
            raise Refused("the process that was to write the kernel down died")
        return {}
    try:
        done = _write(request["layer"], stream, share, before, layers, 0)
    except Refused as refused:
        if quiet:
            raise
        say(line, refused.answer())
        os._exit(0)
    if done is None:
        _wake(world, kernel)
        return None
    done["lost"] = _few(lost)
    if not quiet:
        say(line, done)
        os._exit(0)
    return done


def _write(
    layer: int, stream: int, share: tuple[int, int] | None, before: int, layers: list[tuple[int, int]], flags: int
) -> dict[str, Any] | None:
    """What was written; None in the process that was made of it.

    With `share`, large pieces are mapped from the new layer: the file for reading, and the line on which the host says
    that everything is in it.
    """
    global _last
    assert _native is not None
    own = os.fsencode(_FOLDER) + b"/"
    known = (_Layer * max(1, len(layers)))(*layers)  # type: ignore[misc]
    if share:
        flags |= _SHARE
    request = _Freeze(
        ctypes.sizeof(_Freeze), _REQUEST_VERSION, stream, *(share or (0, 0)), layer, before, known, len(layers), flags,
        _last, _native.rseq_offset, _native.rseq_len, own, len(own),
    )  # fmt: skip
    # What a thawed kernel finds: this is the picture that it was made of.
    last, _last = _last, layer
    outcome = _native.freeze(ctypes.byref(request))
    if outcome < 0:
        _last = last
        _raise(-outcome, request.problem)
    if outcome == _THAWED:
        return None
    return {"bytes": request.written, "layers": request.used[: request.used_len]}


def _thaw(request: dict[str, Any], fds: list[int], kernel: Kernel, line: socket.socket) -> None:
    """Becomes another kernel; comes back only if that was not possible."""
    if platform.machine() != "x86_64":
        raise Refused(f"kernels cannot be brought back on this processor ({platform.machine()})")
    prepare()
    assert _native is not None
    index, *rest = fds
    layers = list(zip(request["layers"], rest, strict=True))
    known = (_Layer * max(1, len(layers)))(*layers)  # type: ignore[misc]
    order = _Thaw(
        ctypes.sizeof(_Thaw), _REQUEST_VERSION, index, known, len(layers), _native.rseq_offset, _native.rseq_len, b""
    )
    os.dup2(kernel.descriptors()[0], CONTROL_AT, inheritable=False)
    os.dup2(line.fileno(), LINE_AT, inheritable=False)
    try:
        outcome = _native.thaw(ctypes.byref(order))
        _raise(-outcome, order.problem)
    finally:
        os.close(CONTROL_AT)
        os.close(LINE_AT)


def _raise(number: int, problem: bytes) -> None:
    """Says what the shared object could not do."""
    what = os.fsdecode(problem)
    if number == errno.ENOTSUP:
        raise Refused(f"memory that is shared with others cannot be kept: {what or 'without a name'}")
    if number == errno.EPIPE:
        raise Refused("the host took no more of it")
    if number == errno.ESTALE:
        raise Refused(f"{what} has changed" if what else "the system has changed since")
    raise Refused(f"{os.strerror(number)}{': ' + what if what else ''}")


class _World:
    """What a kernel has besides memory, and how to have it again."""

    def __init__(self, files: list[_OpenFile], lost: list[str]) -> None:
        self._files = files
        self._lost = lost
        self._cwd = os.getcwd()
        self._mask = os.umask(0)
        os.umask(self._mask)

    def restore(self) -> list[str]:
        lost = list(self._lost)
        os.umask(self._mask)
        try:
            os.chdir(self._cwd)
        except OSError as error:
            lost.append(f"the current directory ({error})")
        for file in self._files:
            try:
                file.reopen()
            except OSError as error:
                lost.append(f"an open file ({error})")
        return lost


class _OpenFile:
    """A file that was open by its path, where it was read or written, and how."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd, self._path = fd, path
        self._flags = fcntl.fcntl(fd, fcntl.F_GETFL) & _KEPT_FLAGS
        self._inheritable = os.get_inheritable(fd)
        try:
            self._offset = os.lseek(fd, 0, os.SEEK_CUR)
        except OSError:
            self._offset = 0

    def reopen(self) -> None:
        fd = os.open(self._path, self._flags | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            if self._offset:
                os.lseek(fd, self._offset, os.SEEK_SET)
            if fd != self._fd:
                os.dup2(fd, self._fd, inheritable=self._inheritable)
            else:
                os.set_inheritable(fd, self._inheritable)
        finally:
            if fd != self._fd:
                os.close(fd)


def _wake(world: _World, kernel: Kernel) -> None:
    """The first steps of a kernel that has just been made of a picture."""
    control, *private = kernel.descriptors()
    # It stays where it is, out of the way of the files that are about to be opened again.
    line = socket.socket(fileno=LINE_AT)
    os.dup2(CONTROL_AT, control, inheritable=False)
    # Whoever we were made in had these at the same places as we; in general they need not be.
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for fd, source in zip(private, (null, 1, 2), strict=True):
        os.dup2(source, fd, inheritable=False)
    seal.close_other_fds([control, *private, line.fileno()])
    lost = world.restore()
    try:
        _refresh(kernel)
    except Exception as error:
        # The user's code may have put anything in the place of what we need.
        lost.append(f"{type(error).__name__}: {error}")
    with line:
        say(line, {"thawed": True, "lost": _few(lost)})


def _refresh(kernel: Kernel) -> None:
    """What libraries remember of a process, and is another now."""
    if _threads():
        _forget_threads(kernel)
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    aio.reopen()
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        # All that are made of one picture would otherwise choose the same secrets.
        ssl.RAND_add(os.urandom(32), 32.0)


def _forget_threads(kernel: Kernel) -> None:
    """Threads that were left out are dead, as they are after a fork: whoever joins one does not wait for ever, and they
    are not in the way of the next picture."""
    random = sys.modules.get("random")
    # A fork chooses another seed; here the sequence goes on as it would have.
    state = random.getstate() if random is not None else None
    after_fork = ctypes.pythonapi.PyOS_AfterFork_Child
    after_fork.restype, after_fork.argtypes = None, []
    kernel.is_waking = True
    try:
        after_fork()
    finally:
        kernel.is_waking = False
    if random is not None:
        random.setstate(state)


def _open_files(ours: set[int]) -> tuple[list[_OpenFile], list[str]]:
    """Files that can be opened again, and what is open besides."""
    files, lost = [], []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd in ours:
            continue
        try:
            mode, path = os.fstat(fd).st_mode, os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            # The one by which the folder is being read.
            continue
        named = path.startswith("/") and not path.endswith(" (deleted)")
        if named and (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISCHR(mode)):
            files.append(_OpenFile(fd, path))
        else:
            lost.append(f"{_kind(mode)} is open (descriptor {fd})")
    return files, lost


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISFIFO, "a pipe"),
        (stat.S_ISREG, "a file without a name"),
    )
    return next((name for test, name in kinds if test(mode)), "something that is no file")


def _threads() -> list[str]:
    main = threading.main_thread()
    return [f"thread `{thread.name}` is alive" for thread in threading.enumerate() if thread is not main]


def _other_tasks() -> bool:
    return len(os.listdir("/proc/self/task")) > 1


def _children() -> list[str]:
    """Processes that were started here and still run."""
    running = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                text = file.read()
        except OSError:
            continue
        command, _, fields = text.partition(" (")[2].rpartition(") ")
        state, parent = fields.split()[:2]
        if int(parent) == os.getpid() and state not in "ZX":
            running.append(f"process {name} (`{command}`) is running")
    return running


def _few(words: list[str]) -> list[str]:
    if len(words) <= MAX_WORDS:
        return words
    return [*words[:MAX_WORDS], f"and {len(words) - MAX_WORDS} more"]
