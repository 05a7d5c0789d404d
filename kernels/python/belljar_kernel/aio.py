"""The event loop of the kernel: `await` at the top level of a cell, and tasks that run between cells.

    a cell awaits         the loop runs until the cell's coroutine has ended
    a cell does not       `asyncio.get_running_loop()` still finds the loop, so `create_task` works as in
                          Jupyter; tasks wait until the cell ends. `asyncio.run` works too, unlike in Jupyter
    between two cells     while tasks are pending the kernel waits for its guest inside the loop (`advance`), so that
                          they go on; without any it waits in one read, and nothing wakes up

One loop lives as long as the kernel, so a client or a lock made in one cell still works in the next. Output of tasks
between two cells, and exceptions that were not retrieved, are shown with the next cell. An interrupt cancels the tasks
that the interrupted cell started; older ones go on. Importing asyncio takes 30 ms, so nothing here imports it before
user code does.
"""

from __future__ import annotations

import sys
import threading

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import ModuleType
    from typing import Any


# How long tasks that are being cancelled may take to clean up after an interrupt or at shutdown.
CANCEL_SECONDS = 2.0
# How many failed tasks are reported with one cell.
MAX_FAILED = 100
# How many tasks are named one by one.
MAX_NAMED = 5

_loop: Any = None
_loop_class: Any = None
# Counts cells, and is odd while one runs.
_cell = 0
# Whether the source of the running cell mentions asyncio or await.
_wants_loop = False
# Tasks that are older than the running cell.
_older: set[Any] = set()
# All tasks of the loop that are still referenced, as weak references.
_tasks: Any = ()
# Tasks that failed before the running cell began, and whose result was not retrieved.
_failed: list[Any] = []
# Failed tasks that are no longer referenced: their names and exceptions.
_dropped: list[tuple[str, BaseException]] = []
# The exception that ended the loop between two cells and was reported at once.
_reported: BaseException | None = None
# When the kernel paused for a snapshot, by the loop's clock.
_stopped_at = 0.0


def while_importing(_module: ModuleType, load: Callable[[], None]) -> None:
    """An import hook: prepares asyncio when it is imported."""
    load()
    _prepare()
    if _wants_loop:
        _pretend_if_asked()


def begin_cell(source: bytes) -> None:
    """Called before a cell runs, so that it finds a loop when it looks for one.

    Most kernels never need a loop, which costs descriptors and 0.2 ms. It is created when a cell's source mentions
    asyncio or await, or when code that the cell calls asks asyncio for the loop (`_prepare`).
    """
    global _cell, _failed, _wants_loop
    _cell += 1 + _cell % 2
    _wants_loop = b"async" in source or b"await" in source
    if "asyncio" not in sys.modules:
        return
    _failed = _failed_tasks()
    if _is_open() or _wants_loop:
        _pretend()


def end_cell() -> None:
    """Called after a cell has ended, when none of its frames is on the stack."""
    global _cell, _wants_loop
    _cell += _cell % 2
    _wants_loop = False
    _older.clear()
    if "asyncio" in sys.modules:
        sys.modules["asyncio"]._set_running_loop(None)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs a cell's coroutine to its end and returns its value."""
    loop = _the_loop()
    return loop.run_until_complete(loop.create_task(coroutine))


def interrupted() -> None:
    """Called when a cell was interrupted: cancels the tasks that it started."""
    if _is_open():
        _cancel(_pending() - _older)


def is_active() -> bool:
    """Whether the loop has work, or may get work, without a cell."""
    if not _is_open():
        return False
    # Besides the loop's own wake-up pipe the selector has descriptors of user code: connections, servers.
    watches = len(_loop._selector.get_map()) > 1
    return bool(_loop._ready or _loop._scheduled or _loop._default_executor or watches or _pending())


def advance(fd: int, seconds: float | None) -> bool:
    """Runs the loop until `fd` is readable, or for this long; returns whether it is readable."""
    readable = late = False

    def on_readable() -> None:
        nonlocal readable
        readable = True
        _loop.stop()

    def give_up() -> None:
        nonlocal late
        late = True
        _loop.stop()

    _loop.add_reader(fd, on_readable)
    timer = None if seconds is None else _loop.call_later(seconds, give_up)
    try:
        # User code may stop the loop too.
        while not (readable or late):
            _loop.run_forever()
    finally:
        _loop.remove_reader(fd)
        if timer is not None:
            timer.cancel()
    return readable


def callback_code() -> Any:
    """The code in whose frame all callbacks of the loop run; None without a loop."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio.events.Handle._run.__code__


def failures(all_of_them: bool) -> list[tuple[str, BaseException]]:
    """Failed tasks whose result was not retrieved, with their names and exceptions; each is returned once.

    Tasks that failed during the running cell are left for the next one, which may await them.
    """
    global _dropped, _failed
    failed, _dropped = _dropped, []
    for task in _failed_tasks() if all_of_them else _failed:
        if task._log_traceback:
            # Otherwise asyncio logs it too, when the task is collected.
            task._log_traceback = False
            failed.append((_describe(task), task._exception))
    _failed = []
    return [(name, error) for name, error in failed if error is not _reported][:MAX_FAILED]


def was_reported(error: BaseException) -> None:
    """Marks an exception that `advance` raised as reported, in case it belongs to a task."""
    global _reported
    _reported = error


def pending_names() -> list[str]:
    """The names of pending tasks."""
    if not _is_open():
        return []
    names = sorted(_describe(task) for task in _pending())
    if len(names) > MAX_NAMED:
        names[MAX_NAMED:] = [f"{len(names) - MAX_NAMED} more"]
    return names


def close() -> None:
    """At shutdown: ends the remaining tasks, without the warnings of a loop that is dropped."""
    if _is_open():
        _cancel(_pending())
        _loop.close()


def forget() -> None:
    """In a forked child: the loop's selector is shared with the parent and must not be touched."""
    global _cell, _loop
    _cell, _loop = 0, None


def descriptors() -> list[int]:
    """The descriptors of the loop itself."""
    if not _is_open():
        return []
    return [_loop._selector.fileno(), _loop._ssock.fileno(), _loop._csock.fileno()]


def stop() -> None:
    """Called before a snapshot: the loop's time stops until `reopen`."""
    global _stopped_at
    if _is_open():
        _stopped_at = _loop.time()


def reopen() -> None:
    """In a kernel that was loaded from a snapshot: replaces the loop's descriptors, which do not exist here."""
    if not _is_open():
        return
    import selectors

    # They are not closed: other files may have the same numbers now.
    for sock in (_loop._ssock, _loop._csock):
        sock.detach()
    _loop._selector = selectors.DefaultSelector()
    _loop._internal_fds -= 1
    _loop._make_self_pipe()
    # After a restart of the machine the clock starts again at 0, and timers would wait too long.
    back = _stopped_at - _loop.time()
    if back > 0:
        for timer in _loop._scheduled:
            timer._when -= back


def _is_open() -> bool:
    return _loop is not None and not _loop.is_closed()


def _pending() -> set[Any]:
    tasks: set[Any] = sys.modules["asyncio"].all_tasks(_loop)
    return tasks


def _describe(task: Any) -> str:
    coroutine = getattr(task.get_coro(), "__qualname__", "") if hasattr(task, "get_coro") else ""
    name = task.get_name() if hasattr(task, "get_name") else "task"
    return f"`{name}` ({coroutine})" if coroutine else f"`{name}`"


def _the_loop() -> Any:
    """The kernel's loop, created when it is first needed."""
    global _loop
    import asyncio

    if not _is_open():
        _prepare()
        _loop = _loop_class()
        asyncio.set_event_loop(_loop)
    return _loop


def _pretend() -> None:
    """Makes code of a cell find a running loop, although the loop runs only when the cell awaits or has ended."""
    loop = _the_loop()
    _older.update(_pending())
    sys.modules["asyncio"]._set_running_loop(loop)


def _pretend_if_asked() -> None:
    """The same for code that asks for a loop while none runs."""
    if _cell % 2 and not _is_open() and threading.current_thread() is threading.main_thread():
        _pretend()


def _prepare() -> None:
    """Patches asyncio to ask us for a loop, and to run a loop while another only appears to run."""
    global _loop_class, _tasks
    if _loop_class is not None:
        return
    import asyncio
    import weakref
    from asyncio import base_events, runners

    class KernelLoop(asyncio.SelectorEventLoop):
        """A loop that knows its tasks, so that every failure is reported."""

        def create_task(self, coro: Any, **options: Any) -> Any:
            task = super().create_task(coro, **options)
            _tasks.add(task)
            return task

        def default_exception_handler(self, context: dict[str, Any]) -> None:
            task, error = context.get("future"), context.get("exception")
            if error is None or task not in _tasks or len(_dropped) >= MAX_FAILED:
                super().default_exception_handler(context)
            else:
                # The task is being collected: asyncio would log this.
                _dropped.append((_describe(task), error))

    _loop_class = KernelLoop
    _tasks = weakref.WeakSet()
    for owner, name in (
        (base_events.BaseEventLoop, "run_forever"),
        (base_events.BaseEventLoop, "run_until_complete"),
        (getattr(runners, "Runner", None), "run"),
        (runners, "run"),
    ):
        if owner is not None:
            setattr(owner, name, _really(getattr(owner, name)))
    asyncio.run = runners.run
    for name in ("get_running_loop", "get_event_loop", "_get_event_loop"):
        function = getattr(asyncio.events, name, None)
        if function is not None:
            function = _asking(function)
            setattr(asyncio.events, name, function)
            if hasattr(asyncio, name):
                setattr(asyncio, name, function)


def _asking(function: Any) -> Any:
    """Wraps a function that looks for the running loop, so that code of a cell finds one."""
    import functools

    @functools.wraps(function)
    def look(*args: Any, **kwargs: Any) -> Any:
        if _loop is None:
            _pretend_if_asked()
        return function(*args, **kwargs)

    return look


def _really(function: Any) -> Any:
    """Wraps a function that runs a loop: meanwhile no loop appears to run."""
    import asyncio
    import functools

    @functools.wraps(function)
    def run_loop(*args: Any, **kwargs: Any) -> Any:
        pretended = asyncio._get_running_loop()
        if pretended is None or pretended is not _loop or pretended.is_running():
            return function(*args, **kwargs)
        asyncio._set_running_loop(None)
        try:
            return function(*args, **kwargs)
        finally:
            asyncio._set_running_loop(pretended)

    return run_loop


def _failed_tasks() -> list[Any]:
    """Tasks with an exception that was not retrieved."""
    return [task for task in list(_tasks) if task.done() and getattr(task, "_log_traceback", False)]


def _cancel(tasks: set[Any]) -> None:
    import asyncio

    for task in tasks:
        task.cancel()
    if tasks:
        _loop.run_until_complete(asyncio.wait(tasks, timeout=CANCEL_SECONDS))
    for task in tasks:
        # Reading the outcome keeps asyncio from logging it as "never retrieved".
        if task.done() and not task.cancelled():
            task.exception()
