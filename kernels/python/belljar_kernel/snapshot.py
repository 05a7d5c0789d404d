"""Writes a snapshot of the kernel, and loads one. The host requests it over its own socket.

    host                                          kernel
     | freeze {layer, before, layers} + files ---->| checks, writes its memory into a pipe
     |== pipe ====================================>| (the host writes the files: the kernel has none open for writing)
     | kept -------------------------------------->| maps large regions from the new file
     |<- {bytes} or {refused} .................... | goes on
     |
     | thaw {layers} + files --------------------->| a new kernel in another sandbox: becomes the saved one
     |                                             | and goes on inside `freeze`
     |<- {thawed, lost} .......................... |

A shared object (`crates/belljar-snapshot`) saves and loads memory. This module does the rest: it finds what cannot be
saved before anything is written, and opens files again afterwards. Sockets, pipes, threads and child processes cannot
be saved: they are a reason to refuse, or with `force` they are left out and reported.
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
# The most layers that an index can have.
MAX_LAYERS = 64
# The most that a report can list.
MAX_WORDS = 20

# Descriptors that a kernel passes to its successor. They are below the private ones of `wire`.
CONTROL_AT = 950
LINE_AT = 951

_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
_LIBRARY = os.path.join(_FOLDER, "belljar_freeze.so")

# The version of the two structures below; crates/belljar-snapshot/src/lib.rs compares it and their sizes.
_REQUEST_VERSION = 2

# Flags of a request, see crates/belljar-snapshot/src/freeze.rs.
_SHARE = 2
_LAID_OUT = 4

_THAWED = 1
# The C library registers at least this length, even if it reports less.
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
    """The reasons why there can be no snapshot of the kernel."""

    # `force` would not help.
    entirely = True

    def __init__(self, *reasons: str) -> None:
        super().__init__(*reasons)
        self.reasons = list(reasons)

    def answer(self) -> dict[str, Any]:
        return {"refused": _few(self.reasons), "entirely": self.entirely}


class InTheWay(Refused):
    """Parts of the kernel that cannot be saved. With `force` there can be a snapshot without them."""

    entirely = False


class _Native:
    """The shared object, and what it needs to know about the C library."""

    def __init__(self) -> None:
        # These calls hold the interpreter's lock, so that no other thread runs meanwhile.
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
            # Another C library, or an older one, which does not register it.
            self.rseq_offset = self.rseq_len = 0


_native: _Native | None = None
# The layer of the last snapshot of this process.
_last = 0


def prepare() -> None:
    """Loads the shared object."""
    global _native
    if _native is None:
        _native = _Native()


def write_common(layer: int, stream: int) -> int | None:
    """Writes the snapshot that kernels start from. Returns its size; None in a kernel that was loaded from it."""
    if platform.machine() != "x86_64":
        raise Refused(f"snapshots of kernels are not supported on this processor ({platform.machine()})")
    if _other_tasks():
        raise Refused("a thread besides the main one is alive")
    prepare()
    done = _write(layer, stream, None, -1, [], _LAID_OUT)
    if done is None:
        forget_last()
        return None
    return int(done["bytes"])


def forget_last() -> None:
    """Makes the next snapshot compare every page with the earlier one.

    Otherwise pages that are shared with another process count as unchanged since the last snapshot. That is wrong after
    a fork, and in a kernel that was loaded from a snapshot: there all pages are shared.
    """
    global _last
    _last = 0


def talk(line: socket.socket, kernel: Kernel) -> None:
    """Handles one request of the host."""
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
            # This is another process now, where these numbers belong to other files.
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
        # The host has closed the connection.
        pass


def _freeze(request: dict[str, Any], fds: list[int], kernel: Kernel, line: socket.socket) -> dict[str, Any] | None:
    """Writes a snapshot of this kernel, and returns the answer. None in a kernel that was loaded from it."""
    if platform.machine() != "x86_64":
        raise Refused(f"snapshots of kernels are not supported on this processor ({platform.machine()})")
    prepare()
    stream, *rest = fds
    share = (rest.pop(0), line.fileno()) if request.get("share") else None
    before = rest.pop(0) if request.get("before") else -1
    layers = list(zip(request["layers"], rest, strict=True))
    ours = [*fds, line.fileno(), *kernel.descriptors(), *aio.descriptors()]
    files, lost = _open_files({*ours, 0, 1, 2})
    lost += _threads() + _children()
    # Tasks are saved, but pause until the kernel is loaded again, which user code must expect.
    paused = [f"asyncio task {name} is pending" for name in aio.pending_names()]
    if (lost or paused) and not request.get("force"):
        raise InTheWay(*lost, *paused)
    aio.stop()
    world = _World(files, lost)
    quiet = not _other_tasks()
    # Libraries with their own threads know how to continue without them after a fork.
    child = 0 if quiet else seal.fork_without_hooks()
    if not quiet and not child:
        forget_last()
    if child:
        _, status = os.waitpid(child, 0)
        if status:
            raise Refused("the process that wrote the snapshot died")
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
    """What was written; None in a process that was loaded from it.

    With `share` (the file for reading, and the socket on which the host reports that the file is complete), large
    regions are mapped from the new layer.
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
    # Set before the snapshot: a kernel that is loaded from it must find this layer.
    last, _last = _last, layer
    outcome = _native.freeze(ctypes.byref(request))
    if outcome < 0:
        _last = last
        _raise(-outcome, request.problem)
    if outcome == _THAWED:
        return None
    return {"bytes": request.written, "layers": request.used[: request.used_len]}


def _thaw(request: dict[str, Any], fds: list[int], kernel: Kernel, line: socket.socket) -> None:
    """Becomes another kernel; returns only if that failed."""
    if platform.machine() != "x86_64":
        raise Refused(f"snapshots of kernels are not supported on this processor ({platform.machine()})")
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
    """Raises the error of the shared object."""
    what = os.fsdecode(problem)
    if number == errno.ENOTSUP:
        raise Refused(f"memory that is shared with other processes cannot be saved: {what or 'without a name'}")
    if number == errno.EPIPE:
        raise Refused("the host stopped reading the snapshot")
    if number == errno.ENOEXEC:
        raise Refused(f"this machine lacks {what}, which the kernel's libraries may use")
    if number == errno.ESTALE:
        raise Refused(f"{what} has changed" if what else "the system has changed since")
    raise Refused(f"{os.strerror(number)}{': ' + what if what else ''}")


class _World:
    """The state of a kernel outside its memory, and how to restore it."""

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
    """An open file: its path, its position and its flags."""

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
    """The first steps of a kernel that was loaded from a snapshot."""
    control, *private = kernel.descriptors()
    # It keeps its number, which no file that is opened again has.
    line = socket.socket(fileno=LINE_AT)
    os.dup2(CONTROL_AT, control, inheritable=False)
    # The process that became this kernel had them at the same numbers; that is not guaranteed in general.
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for fd, source in zip(private, (null, 1, 2), strict=True):
        os.dup2(source, fd, inheritable=False)
    seal.close_other_fds([control, *private, line.fileno()])
    lost = world.restore()
    try:
        _refresh(kernel)
    except Exception as error:
        # User code may have replaced any object that this needs.
        lost.append(f"{type(error).__name__}: {error}")
    with line:
        say(line, {"thawed": True, "lost": _few(lost)})


def _refresh(kernel: Kernel) -> None:
    """Updates what libraries remember about the process, which is another one now."""
    if _threads():
        _forget_threads(kernel)
    threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    aio.reopen()
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        # Otherwise all kernels that are loaded from one snapshot would draw the same secrets.
        ssl.RAND_add(os.urandom(32), 32.0)


def _forget_threads(kernel: Kernel) -> None:
    """Marks threads that were left out as ended, as after a fork, so that `join` does not wait for them and they do not
    prevent the next snapshot."""
    random = sys.modules.get("random")
    # A fork sets another seed; here the random sequence must continue.
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
    """Files that can be opened again, and descriptions of other open descriptors."""
    files, lost = [], []
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd in ours:
            continue
        try:
            mode, path = os.fstat(fd).st_mode, os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            # The descriptor that lists this folder.
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
    return next((name for test, name in kinds if test(mode)), "something that is not a file")


def _threads() -> list[str]:
    main = threading.main_thread()
    return [f"thread `{thread.name}` is alive" for thread in threading.enumerate() if thread is not main]


def _other_tasks() -> bool:
    return len(os.listdir("/proc/self/task")) > 1


def _children() -> list[str]:
    """Running child processes."""
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
