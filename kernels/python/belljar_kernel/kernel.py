"""The kernel: executes one exec after another and sends the results.

    start -> hello -> idle -> exec -> done -> idle ... -> shutdown, or end of file -> atexit handlers -> exit

An idle kernel is blocked in one read(): no thread and no timer wakes it, except after an exec that freed much memory
(`memory`), and for pending asyncio tasks (`aio`). An exec runs in the main thread, so that signals, asyncio and
matplotlib behave as in a script. It never ends the kernel: exceptions, sys.exit and interrupts become a status.

An exec may be a script, which is the only exec of its kernel. A script has arguments and a file, and ends as scripts do
(`_end_script`).

A child that user code forks has a copy of our stack, but must not act as the kernel. It closes the control socket at
once, and exits at the end of the cell, as a script's child would at the end of the script.
"""

from __future__ import annotations

import atexit
import builtins
import os
import sys
import threading
from types import ModuleType

from . import aio, display, figures, frames, importhooks, inputs, interrupts, memory, streams
from .cells import CO_COROUTINE, Cell, Compiler
from .wire import Channel, encode_json

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from typing import Any, NoReturn

PROTOCOL = 1

EXIT_ERROR = 1
EXIT_FATAL = 70  # EX_SOFTWARE: the kernel itself could not start
EXIT_INTERRUPTED = 130  # 128 + SIGINT, as a shell reports it

# How many displays of tasks and threads are kept for the next exec while none runs.
MAX_LATE_DISPLAYS = 100
MAX_LATE_BYTES = 8 << 20


def run_kernel(fd: int, font_cache: str | None = None) -> NoReturn:
    """`main.py kernel`: runs a kernel in a new interpreter, to its exit."""
    main = new_main_module()
    prepare_imports(main, font_cache)
    channel = Channel(fd)
    try:
        kernel = Kernel(channel, main)
    except BaseException as problem:
        send_fatal(channel, problem)
    kernel.serve()


def hello() -> dict[str, Any]:
    """The first message to the guest."""
    return {
        "op": "hello",
        "protocol": PROTOCOL,
        "language": "python",
        "language_version": "{}.{}.{}".format(*sys.version_info),
        "implementation": sys.implementation.name,
        "pid": os.getpid(),
    }


def serve_to_the_end(kernel: Kernel) -> NoReturn:
    """Runs a kernel inside other code, which must never continue: the process exits."""
    try:
        kernel.serve()
    except BaseException:
        # serve() does not return, so this is a bug.
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(EXIT_FATAL)


def new_main_module() -> ModuleType:
    """The module in which cells run. It is `__main__`, so that pickle finds what they define."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return main


def prepare_imports(main: ModuleType, font_cache: str | None) -> None:
    """Registers the import hooks. Must be called before modules are preloaded."""

    def ipython(_module: ModuleType, load: Any) -> None:
        load()
        from . import magics

        magics.create_shell(main)

    def getpass(module: ModuleType, load: Any) -> None:
        load()
        inputs.replace_getpass(module)

    importhooks.add("IPython", ipython)
    importhooks.add("getpass", getpass)
    importhooks.add("asyncio", aio.while_importing)
    figures.prepare(font_cache)


def _python_path() -> list[str]:
    """PYTHONPATH, with the directory of our `sitecustomize` replaced by that of the packages this session installed."""
    installed = f"/session/.local/lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [installed if path.endswith("/kernels/python/site") else path for path in paths if path]


class Kernel:
    def __init__(self, channel: Channel, main: ModuleType) -> None:
        self._channel = channel
        self._main = main
        self._namespace: dict[str, Any] = main.__dict__
        self._compiler = Compiler(_transform)
        self._count = 0
        # True in a child that user code forked.
        self._forked = False
        # True while an exec runs: then the guest accepts displays and answers questions.
        self._running = False
        # Displays for the next exec, and how many more there were.
        self._late: list[tuple[dict[str, Any], bytes]] = []
        self._late_dropped = 0
        # True while a cell runs for a guest that acknowledges displays.
        self._acknowledged = False
        self._housekeeping = memory.Housekeeping()
        # Moves values to disk; created when the guest first requests it.
        self._spill: Any = None
        # A frame that was read while something else was in progress.
        self._waiting: tuple[dict[str, Any], bytes] | None = None

        interrupts.install()
        self._streams = streams.Streams()
        display.publish = self._publish
        inputs.ask = self._ask
        inputs.install()
        builtins.display = display.display  # type: ignore[attr-defined]
        builtins.load, builtins.save = frames.load, frames.save  # type: ignore[attr-defined]
        # These hooks also run in a kernel that was loaded from a snapshot without its threads; that is not a child.
        self.is_waking = False
        os.register_at_fork(before=_before_fork, after_in_child=self._after_fork_in_child)

        sys.argv = [""]
        # `-I` keeps PYTHONPATH away from our own imports; the user's imports may have it.
        sys.path[:0] = ["", *_python_path()]

    def serve(self, rehearse: bool = False) -> NoReturn:
        """Sends hello and serves the guest until it shuts down."""
        self._channel.send(hello())
        if rehearse:
            self._rehearse()
        while True:
            try:
                frame = self._next_frame()
            except BaseException as error:
                self._survive_handler(error)
                continue
            if frame is None:
                break
            head, body = frame
            op = head.get("op")
            if op == "exec":
                self._exec(head, body)
                self._housekeeping.exec_ended()
            elif op == "spill":
                self._tell_spilled(head)
            elif op == "line":
                self._talk()
            elif op in ("state", "ping"):
                self._answer(head)
            elif op == "shutdown":
                break
        self._exit()

    def _next_frame(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame of the guest. Frees memory and runs asyncio tasks while there is none."""
        if self._waiting is not None:
            frame, self._waiting = self._waiting, None
            return frame
        while True:
            silence = self._housekeeping.silence
            if aio.is_active() and not (self._spill is not None and self._spill.is_away):
                has_frame = self._advance(silence)
            elif silence is None:
                break
            else:
                has_frame = self._channel.wait(silence)
            if has_frame:
                break
            self._housekeeping.work()
        return self._channel.receive()

    def _advance(self, seconds: float | None) -> bool:
        """Runs asyncio tasks until the guest sends something, or for this long; returns whether it did."""
        def guest_waits() -> bool:
            return self._channel.wait(0)

        while not guest_waits():
            try:
                fd, callback = self._channel.fileno(), aio.callback_code()
                return bool(interrupts.call_background(aio.advance, guest_waits, callback, fd, seconds))
            except (SystemExit, KeyboardInterrupt) as error:
                # A task raised it; it ends only that task.
                aio.was_reported(error)
                self._tell_failure("an asyncio task", error)
            finally:
                self._streams.flush()
        return True

    def _rehearse(self) -> None:
        """Runs an empty cell once, in its own namespace.

        A kernel that starts from shared memory copies every page that it writes first. This does most of it before the
        first exec arrives.
        """
        cell = self._compiler.compile("import sys\n0", 0, True)
        bundle = display.bundle_of(_evaluate(cell, {}))
        if bundle is not None:
            display.encode_bundle(bundle)
        self._streams.repair()

    def _exec(self, head: dict[str, Any], body: bytes) -> None:
        interrupts.expect_user_code()
        script = head.get("script")
        self._channel.expect_input(head.get("exec_id"))
        self._streams.repair(inputs.begin(head.get("stdin", False), script is not None))
        self._count += 1
        self._running = True
        self._show_late()
        status, exit_code = "ok", 0
        try:
            environment = head.get("env")
            if environment:
                os.environ.update(environment)
            self._acknowledged = head.get("acknowledges", False)
            _notice_new_directories()
            self._restore()
            if script is not None:
                self._begin_script(script)
            interrupts.call_user(self._run, body, head.get("echo", True), script)
        except BaseException as error:
            status, exit_code = self._report(error)
        if script is not None and not self._forked:
            try:
                interrupts.call_user(_end_script)
            except BaseException as error:
                ended = self._report(error)
                status, exit_code = ended if status == "ok" else (status, exit_code)
        self._acknowledged = self._running = False
        inputs.begin(False)
        # Unread input lines are not for the next exec, and must not look like a new frame.
        self._channel.expect_input(None)
        interrupts.forget()
        self._streams.flush()
        if self._forked:
            os._exit(exit_code)
        self._channel.send(
            {
                "op": "done",
                "exec_id": head.get("exec_id"),
                "status": status,
                "exit_code": exit_code,
                "execution_count": self._count,
            }
        )

    def _begin_script(self, script: dict[str, Any]) -> None:
        """Sets arguments, `__file__` and the module search path as Python does for a script."""
        sys.argv = list(script["argv"])
        path = script.get("path")
        if path is not None:
            self._namespace["__file__"] = path
            sys.path[0] = os.path.dirname(path)

    def _run(self, source: bytes, echo: bool, script: dict[str, Any] | None = None) -> None:
        """Runs the cell, and sends its result and its figures: everything that may run user code."""
        # Otherwise Python shows a warning only for the first cell that causes it on a line.
        self._namespace.pop("__warningregistry__", None)
        rendering = True
        try:
            aio.begin_cell(source)
            path = None if script is None else script.get("path")
            cell = self._compiler.compile(_decode(source, path is not None), self._count, echo, path)
            if b"get_ipython" in source:
                _want_ipython()
            value = aio.run(_evaluate_async(cell, self._namespace)) if cell.awaits else _evaluate(cell, self._namespace)
            if value is not None and not self._forked:
                # As the standard displayhook does; a global `_` of the user is not changed.
                builtins._ = value  # type: ignore[attr-defined]
                bundle = display.bundle_of(value)
                if bundle is not None:
                    self._publish("result", bundle)
        except KeyboardInterrupt:
            rendering = False
            if not self._forked:
                aio.interrupted()
            raise
        finally:
            failed = aio.failures(script is not None)
            aio.end_cell()
            if not self._forked:
                figures.end_of_cell(rendering)
                self._tell_tasks(failed, script is not None)
            self._streams.flush_replacements()
            interrupts.reclaim()

    def _tell_tasks(self, failed: list[tuple[str, BaseException]], is_script: bool) -> None:
        """Prints the exceptions of asyncio tasks that were not retrieved."""
        for name, error in failed:
            self._tell_failure(f"asyncio task {name}", error)
        pending = aio.pending_names() if is_script else []
        if pending:
            names = ", ".join(pending)
            self._streams.stderr.write(f"belljar: asyncio tasks that had not ended with the code: {names}\n")

    def _tell_failure(self, what: str, error: BaseException) -> None:
        from . import tracebacks

        try:
            text = tracebacks.render(error)
        except Exception as reason:
            text = tracebacks.fallback(error, reason)["traceback"]
        self._streams.stderr.write(f"{what} failed:\n{text}")

    def _report(self, error: BaseException) -> tuple[str, int]:
        """Reports to the guest (in a forked child: to stderr) how the cell failed; returns status and exit code."""
        try:
            if isinstance(error, SystemExit):
                return "exit", interrupts.call_user(_exit_code, error)
            description = interrupts.call_user(_describe, error)
        except BaseException as reason:
            # A `__str__` that raises, or an interrupt while a large traceback was formatted.
            from . import tracebacks

            description = tracebacks.fallback(error, reason)
        if self._forked:
            self._streams.stderr.write(description["traceback"])
        else:
            self._streams.flush()
            self._channel.send({"op": "error"}, encode_json(description))
        if isinstance(error, KeyboardInterrupt):
            return "interrupted", EXIT_INTERRUPTED
        return "error", EXIT_ERROR

    def _publish(self, kind: str, bundle: display.Bundle) -> None:
        """Sends a bundle to the guest, after everything that was printed before it."""
        body = display.encode_bundle(bundle)
        self._streams.flush_replacements()
        self._streams.flush()
        if self._forked:
            # Only the parent may use the control socket; a child has stdout.
            print(bundle[0].get(display.TEXT, ""))
            return
        head: dict[str, Any] = {"op": "display", "kind": kind}
        if not self._running:
            # A display of a task or a thread between two execs.
            if len(self._late) < MAX_LATE_DISPLAYS and len(body) + sum(len(b) for _, b in self._late) <= MAX_LATE_BYTES:
                self._late.append((head, body))
            else:
                self._late_dropped += 1
            return
        if kind == "result":
            # `done` follows at once: both are sent together.
            self._channel.hold(head, body)
            return
        # Output that the user prints next goes through a pipe and could arrive before this. After a result nothing is
        # printed, and a thread must not take answers for the main thread.
        if kind == "display" and self._acknowledged and threading.current_thread() is threading.main_thread():
            head["wait"] = True
        interrupts.send_from_user_code(self._channel, head, body)

    def _show_late(self) -> None:
        """Sends the displays that were kept while no exec ran."""
        late, self._late = self._late, []
        for head, body in late:
            self._channel.send(head, body)
        if self._late_dropped:
            self._streams.stderr.write(f"belljar: {self._late_dropped} displays between two executions were dropped\n")
            self._late_dropped = 0

    def _ask(self, prompt: str, password: bool, stream: bool) -> bytes:
        """A line of input from the client, or a part of a stream; empty at the end."""
        if self._forked or not self._running:
            return b""
        if threading.current_thread() is not threading.main_thread():
            # The main thread may be using the control socket.
            raise EOFError("input() works only in the main thread")
        self._streams.flush_replacements()
        self._streams.flush()
        question = encode_json({"prompt": prompt, "password": password})
        head = {"op": "input", "stream": True} if stream else {"op": "input"}
        return interrupts.ask_from_user_code(self._channel, head, question)

    def _answer(self, head: dict[str, Any]) -> None:
        """Answers requests that are possible at any time between two cells."""
        if head.get("op") == "state":
            self._tell_state()
        else:
            self._channel.send({"op": "pong", "token": head.get("token")})

    def _tell_spilled(self, request: dict[str, Any]) -> None:
        """Moves large values to disk, unless the guest sends a request meanwhile; sends a report."""
        from . import spill

        def meanwhile() -> None:
            while self._channel.wait(0):
                frame = self._channel.receive()
                if frame is None or frame[0].get("op") not in ("state", "ping"):
                    self._waiting = frame
                    raise spill.Disturbed
                self._answer(frame[0])

        if self._spill is None:
            self._spill = spill.Spill(self._namespace)
        report = self._spill.spill(request, meanwhile)
        self._channel.send({"op": "spilled"}, encode_json(report))

    def _talk(self) -> None:
        """Takes a socket to the host, and handles a request on it."""
        import socket

        from . import snapshot

        self._streams.flush()
        line = self._channel.take_descriptor({"op": "line"})
        if line is not None:
            snapshot.talk(socket.socket(fileno=line), self)

    def descriptors(self) -> list[int]:
        """The kernel's own descriptors: the control socket first, then those of `streams`."""
        return [self._channel.fileno(), *self._streams.saved()]

    def _restore(self) -> None:
        """Loads values from disk, before any user code runs."""
        if self._spill is not None:
            problem = self._spill.restore()
            if problem:
                self._streams.stderr.write(f"belljar: {problem}\n")

    def _tell_state(self) -> None:
        """Sends a description of the variables. It may be interrupted like a cell."""
        from . import state

        interrupts.expect_user_code()
        body = b""
        try:
            body = interrupts.call_user(state.snapshot, self._namespace)
        except BaseException:
            # After any failure there is no description: the body is empty.
            pass
        interrupts.forget()
        self._channel.send({"op": "state"}, body)

    def _survive_handler(self, error: BaseException) -> None:
        """Prints the exception of a user's signal handler between two cells; raises any other exception."""
        from . import tracebacks

        if not tracebacks.has_user_frame(error):
            raise error
        self._streams.stderr.write(tracebacks.render(error))
        self._streams.flush()

    def _after_fork_in_child(self) -> None:
        if self.is_waking:
            return
        self._forked = True
        self._channel.close()
        self._streams.close_private()
        aio.forget()

    def _exit(self) -> NoReturn:
        """Runs the user's atexit handlers and exits.

        The interpreter's own finalization is skipped: it would write to, and so copy, every shared page, and wait for
        threads that may never end.
        """
        self._restore()
        aio.close()
        atexit._run_exitfuncs()
        self._streams.flush()
        os._exit(0)


def send_fatal(channel: Channel, problem: BaseException) -> NoReturn:
    """Reports why the kernel could not start, and ends the process."""
    message = f"the kernel could not start: {type(problem).__name__}: {problem}"
    channel.send({"op": "fatal"}, encode_json({"message": message}))
    os._exit(EXIT_FATAL)


def _notice_new_directories() -> None:
    """Makes Python look again for directories of packages that were missing before: a command may have installed
    packages meanwhile."""
    known = sys.path_importer_cache
    for path in sys.path:
        if isinstance(path, str) and path and known.get(path, known) is None and os.path.isdir(path):
            known.pop(path, None)


def _before_fork() -> None:
    snapshot = sys.modules.get(f"{__package__}.snapshot")
    if snapshot is not None:
        snapshot.forget_last()


def _evaluate(cell: Cell, namespace: dict[str, Any]) -> Any:
    if cell.body is not None:
        eval(cell.body, namespace)
    return None if cell.last is None else eval(cell.last, namespace)


async def _evaluate_async(cell: Cell, namespace: dict[str, Any]) -> Any:
    """One coroutine for both parts of a cell, so that code between two awaits finds a running loop."""
    value = None
    for code in (cell.body, cell.last):
        if code is not None:
            value = eval(code, namespace)
            if code.co_flags & CO_COROUTINE:
                value = await value
    return None if cell.last is None else value


def _end_script() -> None:
    """Does what Python does at the end of a script: waits for threads, and runs registered handlers."""
    for finish in reversed(getattr(threading, "_threading_atexits", ())):
        # Thread pools end their threads.
        finish()
    main = threading.main_thread()
    while others := [thread for thread in threading.enumerate() if thread is not main and not thread.daemon]:
        others[0].join()
    atexit._run_exitfuncs()


def _decode(source: bytes, is_file: bool) -> str:
    """The text of a cell, which is UTF-8, or of a file, which may have a byte order mark or name another encoding."""
    if not is_file:
        return source.decode()
    try:
        return source.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError as error:
        import importlib.util

        try:
            return importlib.util.decode_source(source)
        except SyntaxError:
            # It names no encoding, or an unknown one.
            raise error from None


def _describe(error: BaseException) -> dict[str, Any]:
    from . import tracebacks

    return tracebacks.describe(error)


def _exit_code(request: SystemExit) -> int:
    """The exit status of a process that ends with this SystemExit."""
    code = request.code
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return EXIT_ERROR


def _transform(source: str) -> str:
    # Importing IPython makes the import hook create the shell, from the module imported next.
    import IPython  # noqa: F401

    from . import magics

    return magics.transform(source)


def _want_ipython() -> None:
    """Creates the IPython shell for a cell that mentions get_ipython(), if IPython is installed."""
    try:
        import IPython  # noqa: F401  (the import hook creates the shell)
    except ImportError:
        pass
