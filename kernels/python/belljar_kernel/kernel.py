"""The kernel: takes one exec after another and answers with what it produced.

    start -> hello -> idle -> exec -> done -> idle ... -> shutdown, or end of file -> atexit handlers -> exit

Idle means blocked in one read(): no thread, no timer, nothing wakes up, but for a moment after an exec that left much
memory behind (`memory`), and for asyncio tasks that an exec left pending (`aio`). An exec runs in the main thread, so
that signals, asyncio and matplotlib behave as in a script, and it never ends the kernel: exceptions, sys.exit
and interrupts all become a status.

An exec may be a script, which is the only exec of its kernel: it has arguments and a file, and at its end happens what
happens at the end of a script (`_end_script`).

A child that user code forks shares our stack but not our job. It loses the control socket at once, and
when it comes to the end of the cell it exits, as a script's child would at the end of the script.
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

# Displays of tasks and threads that are kept while no exec runs, for the next one.
MAX_LATE_DISPLAYS = 100
MAX_LATE_BYTES = 8 << 20


def run_kernel(fd: int, font_cache: str | None = None) -> NoReturn:
    """`main.py kernel`: everything from a fresh interpreter to its exit."""
    main = new_main_module()
    prepare_imports(main, font_cache)
    channel = Channel(fd)
    try:
        kernel = Kernel(channel, main)
    except BaseException as problem:
        send_fatal(channel, problem)
    kernel.serve()


def hello() -> dict[str, Any]:
    """What the guest hears first."""
    return {
        "op": "hello",
        "protocol": PROTOCOL,
        "language": "python",
        "language_version": "{}.{}.{}".format(*sys.version_info),
        "implementation": sys.implementation.name,
        "pid": os.getpid(),
    }


def serve_to_the_end(kernel: Kernel) -> NoReturn:
    """For a kernel that was made in the middle of something else, whose code on the stack must never go on."""
    try:
        kernel.serve()
    except BaseException:
        # serve() does not return, so this is a bug of ours.
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(EXIT_FATAL)


def new_main_module() -> ModuleType:
    """The module in which cells run. It is really `__main__`, or pickle would not find what they define."""
    main = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    return main


def prepare_imports(main: ModuleType, font_cache: str | None) -> None:
    """Puts the import hooks in place; before anything is preloaded, where something is."""

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
    """PYTHONPATH, where the directory of our `sitecustomize` stands for the packages that this session installed."""
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
        # True while an exec runs: the guest takes displays and answers questions.
        self._running = False
        # Displays for the next exec, and how many more there were.
        self._late: list[tuple[dict[str, Any], bytes]] = []
        self._late_dropped = 0
        # True while a cell runs for a guest that tells when it has seen a display.
        self._acknowledged = False
        self._housekeeping = memory.Housekeeping()
        # Values that are on disk; made when the guest first asks for it.
        self._spill: Any = None
        # A frame that was read while something else was being done.
        self._waiting: tuple[dict[str, Any], bytes] | None = None

        interrupts.install()
        self._streams = streams.Streams()
        display.publish = self._publish
        inputs.ask = self._ask
        inputs.install()
        builtins.display = display.display  # type: ignore[attr-defined]
        builtins.load, builtins.save = frames.load, frames.save  # type: ignore[attr-defined]
        # Hooks for children run in a kernel that was made of a picture without its threads, which is no child.
        self.is_waking = False
        os.register_at_fork(before=_before_fork, after_in_child=self._after_fork_in_child)

        sys.argv = [""]
        # `-I` keeps PYTHONPATH away from our own imports; the user's imports may have it.
        sys.path[:0] = ["", *_python_path()]

    def serve(self, rehearse: bool = False) -> NoReturn:
        """Says hello and works until the guest has had enough."""
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
        """What the guest says next. While it says nothing, there may be something to tidy up."""
        if self._waiting is not None:
            frame, self._waiting = self._waiting, None
            return frame
        while True:
            silence = self._housekeeping.silence
            if aio.is_active() and not (self._spill is not None and self._spill.is_away):
                heard = self._advance(silence)
            elif silence is None:
                break
            else:
                heard = self._channel.wait(silence)
            if heard:
                break
            self._housekeeping.work()
        return self._channel.receive()

    def _advance(self, seconds: float | None) -> bool:
        """Lets asyncio tasks go on until the guest says something, or for this long; whether it did."""
        def guest_waits() -> bool:
            return self._channel.wait(0)

        while not guest_waits():
            try:
                fd, callback = self._channel.fileno(), aio.callback_code()
                return bool(interrupts.call_background(aio.advance, guest_waits, callback, fd, seconds))
            except (SystemExit, KeyboardInterrupt) as error:
                # Of a task, for which there is nothing to leave or to interrupt but itself.
                aio.was_told(error)
                self._tell_failure("an asyncio task", error)
            finally:
                self._streams.flush()
        return True

    def _rehearse(self) -> None:
        """Goes through the motions of a cell once, in a namespace of its own.

        In a kernel that begins with memory of others whatever is written first must be copied. Better while the kernel
        waits for its first exec than while somebody waits for the result.
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
        # Lines that nobody has asked for are not another exec's, and must not look as if the guest had said something.
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
        """Makes arguments, `__file__` and the module search path what Python makes them for a script."""
        sys.argv = list(script["argv"])
        path = script.get("path")
        if path is not None:
            self._namespace["__file__"] = path
            sys.path[0] = os.path.dirname(path)

    def _run(self, source: bytes, echo: bool, script: dict[str, Any] | None = None) -> None:
        """The cell itself, its result and its figures: all that is user code, or may call some."""
        # Otherwise a warning would be shown only by the first cell that causes it on a given line.
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
                # Where the standard displayhook keeps it: a user's own global `_` is left alone.
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
        """Prints what became of asyncio tasks that nobody waits for."""
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
        """Tells the guest (in a forked child: stderr) how the cell failed; returns status and exit code."""
        try:
            if isinstance(error, SystemExit):
                return "exit", interrupts.call_user(_exit_code, error)
            description = interrupts.call_user(_describe, error)
        except BaseException as reason:
            # A __str__ that raises, or an interrupt while a huge traceback was being formatted.
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
            # The parent speaks to the guest; the child still has stdout.
            print(bundle[0].get(display.TEXT, ""))
            return
        head: dict[str, Any] = {"op": "display", "kind": kind}
        if not self._running:
            # Of a task or a thread, between two execs.
            if len(self._late) < MAX_LATE_DISPLAYS and len(body) + sum(len(b) for _, b in self._late) <= MAX_LATE_BYTES:
                self._late.append((head, body))
            else:
                self._late_dropped += 1
            return
        if kind == "result":
            # The end of the cell is about to be told: one message for both.
            self._channel.hold(head, body)
            return
        # What the user prints next travels through a pipe and could overtake this. After a result nothing is
        # printed any more, and a thread must not take the main thread's answers.
        if kind == "display" and self._acknowledged and threading.current_thread() is threading.main_thread():
            head["wait"] = True
        interrupts.send_from_user_code(self._channel, head, body)

    def _show_late(self) -> None:
        """Hands on what was displayed while no exec ran."""
        late, self._late = self._late, []
        for head, body in late:
            self._channel.send(head, body)
        if self._late_dropped:
            self._streams.stderr.write(f"belljar: {self._late_dropped} displays between two executions were dropped\n")
            self._late_dropped = 0

    def _ask(self, prompt: str, password: bool, stream: bool) -> bytes:
        """A line of input from whoever watches, or a part of a stream; empty at the end."""
        if self._forked or not self._running:
            return b""
        if threading.current_thread() is not threading.main_thread():
            # The main thread may be talking to the guest itself.
            raise EOFError("input can only be asked for in the main thread")
        self._streams.flush_replacements()
        self._streams.flush()
        question = encode_json({"prompt": prompt, "password": password})
        head = {"op": "input", "stream": True} if stream else {"op": "input"}
        return interrupts.ask_from_user_code(self._channel, head, question)

    def _answer(self, head: dict[str, Any]) -> None:
        """What can be answered at any time between two cells."""
        if head.get("op") == "state":
            self._tell_state()
        else:
            self._channel.send({"op": "pong", "token": head.get("token")})

    def _tell_spilled(self, request: dict[str, Any]) -> None:
        """Moves large values to disk, unless the guest wants something else meanwhile; says what came of it."""
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
        """Takes a line to the host, and does what is asked there."""
        import socket

        from . import snapshot

        self._streams.flush()
        line = self._channel.take_descriptor({"op": "line"})
        if line is not None:
            snapshot.talk(socket.socket(fileno=line), self)

    def descriptors(self) -> list[int]:
        """What the kernel itself has open: the control socket first, then what `streams` keeps."""
        return [self._channel.fileno(), *self._streams.saved()]

    def _restore(self) -> None:
        """Brings back what is on disk, before any code of the user's runs."""
        if self._spill is not None:
            problem = self._spill.restore()
            if problem:
                self._streams.stderr.write(f"belljar: {problem}\n")

    def _tell_state(self) -> None:
        """Sends what the variables are. Not a cell, but it may be interrupted as one."""
        from . import state

        interrupts.expect_user_code()
        body = b""
        try:
            body = interrupts.call_user(state.snapshot, self._namespace)
        except BaseException:
            # Whatever it met, there is nothing to tell; an empty body says so.
            pass
        interrupts.forget()
        self._channel.send({"op": "state"}, body)

    def _survive_handler(self, error: BaseException) -> None:
        """Prints what a signal handler of the user's raised while no cell was running; raises anything else."""
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
        """Runs the user's atexit handlers and leaves.

        The interpreter's own finalization is skipped: it would visit, and so copy, every page that is shared
        with the zygote, and wait for threads that may never end.
        """
        self._restore()
        aio.close()
        atexit._run_exitfuncs()
        self._streams.flush()
        os._exit(0)


def send_fatal(channel: Channel, problem: BaseException) -> NoReturn:
    """Says why the kernel could not start, and ends the process."""
    message = f"the kernel could not start: {type(problem).__name__}: {problem}"
    channel.send({"op": "fatal"}, encode_json({"message": message}))
    os._exit(EXIT_FATAL)


def _notice_new_directories() -> None:
    """A directory of packages that was missing when it was looked for is never looked for again, unless we say so:
    somebody may have installed something meanwhile, by a command beside us."""
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
    """One coroutine for both parts: code between two awaits expects to find a running loop."""
    value = None
    for code in (cell.body, cell.last):
        if code is not None:
            value = eval(code, namespace)
            if code.co_flags & CO_COROUTINE:
                value = await value
    return None if cell.last is None else value


def _end_script() -> None:
    """What the interpreter does at the end of a script: waits for threads, and runs what was registered for the end."""
    for finish in reversed(getattr(threading, "_threading_atexits", ())):
        # Pools of threads tell theirs to end.
        finish()
    main = threading.main_thread()
    while others := [thread for thread in threading.enumerate() if thread is not main and not thread.daemon]:
        others[0].join()
    atexit._run_exitfuncs()


def _decode(source: bytes, is_file: bool) -> str:
    """Cells are UTF-8. A file may begin with a mark that says so, or name another encoding."""
    if not is_file:
        return source.decode()
    try:
        return source.removeprefix(b"\xef\xbb\xbf").decode()
    except UnicodeDecodeError as error:
        import importlib.util

        try:
            return importlib.util.decode_source(source)
        except SyntaxError:
            # It names no encoding, or none that there is.
            raise error from None


def _describe(error: BaseException) -> dict[str, Any]:
    from . import tracebacks

    return tracebacks.describe(error)


def _exit_code(request: SystemExit) -> int:
    """The status a process would end with, were it to end."""
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
    """The cell mentions get_ipython(): make it exist, unless there is no IPython."""
    try:
        import IPython  # noqa: F401  (the import hook creates the shell)
    except ImportError:
        pass
