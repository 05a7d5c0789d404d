"""The event loop of the kernel: `await` at the top level of a cell, and tasks that go on between cells.

    a cell awaits         the loop runs until the cell's coroutine has ended
    a cell does not       `asyncio.get_running_loop()` finds the loop all the same, so `create_task` works as in
                          Jupyter; tasks wait until the cell ends. `asyncio.run` works too, unlike in Jupyter
    between two cells     while tasks are pending the kernel waits for its guest inside the loop (`advance`), so that
                          they go on; without any it waits in one read, and nothing wakes up

One loop lives as long as the kernel, so a client or a lock made in one cell still works in the next. What tasks print
between two cells, and the exceptions that nobody asked them for, are shown with the next cell. An interrupt cancels the
tasks that the interrupted cell started; older ones go on. asyncio costs 30 ms to import, so nothing here imports it
before the user's code does.
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
# Failed tasks that are told of with one cell.
MAX_FAILED = 100
# Tasks that are named one by one.
MAX_NAMED = 5

_loop: Any = None
_loop_class: Any = None
# Counts cells, and is odd while one runs.
_cell = 0
# Whether the cell that runs speaks of asynchronous things.
_wants_loop = False
# Tasks that are older than the cell that runs.
_older: set[Any] = set()
# All tasks of the loop that somebody still has, as weak references.
_tasks: Any = ()
# Tasks that had failed before the cell that runs began, and had not been asked for their result.
_failed: list[Any] = []
# Tasks that failed and that nobody can ask any more: what they were called, and their exceptions.
_dropped: list[tuple[str, BaseException]] = []
# What ended the loop between two cells, and was told at once.
_told: BaseException | None = None
# When a kernel that is about to be written down stopped, by the loop's clock.
_stopped_at = 0.0


def while_importing(_module: ModuleType, load: Callable[[], None]) -> None:
    """An import hook: prepares asyncio as soon as it is there."""
    load()
    _prepare()
    if _wants_loop:
        _pretend_if_asked()


def begin_cell(source: bytes) -> None:
    """A cell is about to run. It finds a loop as soon as it looks for one.

    Most kernels never need a loop, which costs descriptors and a fifth of a millisecond: it is made when a cell speaks
    of asynchronous things, or when anything that the cell calls asks asyncio for the loop (`_prepare`).
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
    """The cell has ended; nothing of it is on the stack any more."""
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
    """The cell was interrupted: what it started ends with it."""
    if _is_open():
        _cancel(_pending() - _older)


def is_active() -> bool:
    """Whether the loop has, or may get, something to do without a cell."""
    if not _is_open():
        return False
    # Besides its own wake-up pipe the selector has what the user's code watches: connections, servers.
    watches = len(_loop._selector.get_map()) > 1
    return bool(_loop._ready or _loop._scheduled or _loop._default_executor or watches or _pending())


def advance(fd: int, seconds: float | None) -> bool:
    """Runs the loop until `fd` can be read, or for this long; whether it can be."""
    heard = late = False

    def hear() -> None:
        nonlocal heard
        heard = True
        _loop.stop()

    def give_up() -> None:
        nonlocal late
        late = True
        _loop.stop()

    _loop.add_reader(fd, hear)
    timer = None if seconds is None else _loop.call_later(seconds, give_up)
    try:
        # The user's code may stop the loop too.
        while not (heard or late):
            _loop.run_forever()
    finally:
        _loop.remove_reader(fd)
        if timer is not None:
            timer.cancel()
    return heard


def callback_code() -> Any:
    """The code in whose frame all callbacks of the loop run; None without a loop."""
    asyncio = sys.modules.get("asyncio")
    return None if asyncio is None else asyncio.events.Handle._run.__code__


def failures(all_of_them: bool) -> list[tuple[str, BaseException]]:
    """Tasks that failed and that nobody asked for their result: what to call each, and its exception. Told once.

    Those that failed during the cell that runs are told by the next, which may be about to await them.
    """
    global _dropped, _failed
    told, _dropped = _dropped, []
    for task in _failed_tasks() if all_of_them else _failed:
        if task._log_traceback:
            # Or asyncio tells of it too, when it is collected.
            task._log_traceback = False
            told.append((_describe(task), task._exception))
    _failed = []
    return [(name, error) for name, error in told if error is not _told][:MAX_FAILED]


def was_told(error: BaseException) -> None:
    """An exception that came out of `advance` need not be told again, should it be a task's."""
    global _told
    _told = error


def pending_names() -> list[str]:
    """The tasks that have not ended, in words."""
    if not _is_open():
        return []
    names = sorted(_describe(task) for task in _pending())
    if len(names) > MAX_NAMED:
        names[MAX_NAMED:] = [f"{len(names) - MAX_NAMED} more"]
    return names


def close() -> None:
    """At shutdown: ends what is left, without the warnings of a loop that is simply dropped."""
    if _is_open():
        _cancel(_pending())
        _loop.close()


def forget() -> None:
    """In a forked child: the loop's selector is shared with the parent and must not be touched."""
    global _cell, _loop
    _cell, _loop = 0, None


def descriptors() -> list[int]:
    """What the loop has open for itself."""
    if not _is_open():
        return []
    return [_loop._selector.fileno(), _loop._ssock.fileno(), _loop._csock.fileno()]


def stop() -> None:
    """The kernel is about to be written down: time stands still from here to `reopen`."""
    global _stopped_at
    if _is_open():
        _stopped_at = _loop.time()


def reopen() -> None:
    """In a kernel that was made of files: the loop is as it was, but for its descriptors, which are gone."""
    if not _is_open():
        return
    import selectors

    # Their numbers may be somebody else's by now, so they are not closed.
    for sock in (_loop._ssock, _loop._csock):
        sock.detach()
    _loop._selector = selectors.DefaultSelector()
    _loop._internal_fds -= 1
    _loop._make_self_pipe()
    # After a restart of the machine the clock begins anew, and what waits for a time would wait for ever.
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
    """The kernel's loop, made when it is first needed."""
    global _loop
    import asyncio

    if not _is_open():
        _prepare()
        _loop = _loop_class()
        asyncio.set_event_loop(_loop)
    return _loop


def _pretend() -> None:
    """Lets the code of a cell find a running loop, although it runs only when the cell awaits or has ended."""
    loop = _the_loop()
    _older.update(_pending())
    sys.modules["asyncio"]._set_running_loop(loop)


def _pretend_if_asked() -> None:
    """The same for code that asks for a loop while there is none."""
    if _cell % 2 and not _is_open() and threading.current_thread() is threading.main_thread():
        _pretend()


def _prepare() -> None:
    """Teaches asyncio to ask us for a loop, and to run one while another is only pretended to run."""
    global _loop_class, _tasks
    if _loop_class is not None:
        return
    import asyncio
    import weakref
    from asyncio import base_events, runners

    class KernelLoop(asyncio.SelectorEventLoop):
        """Knows its tasks, so that none fails without a word."""

        def create_task(self, coro: Any, **options: Any) -> Any:
            task = super().create_task(coro, **options)
            _tasks.add(task)
            return task

        def default_exception_handler(self, context: dict[str, Any]) -> None:
            task, error = context.get("future"), context.get("exception")
            if error is None or task not in _tasks or len(_dropped) >= MAX_FAILED:
                super().default_exception_handler(context)
            else:
                # It is being collected: asyncio would log this.
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
    """Wraps what looks for the loop: the code of a cell finds one."""
    import functools

    @functools.wraps(function)
    def look(*args: Any, **kwargs: Any) -> Any:
        if _loop is None:
            _pretend_if_asked()
        return function(*args, **kwargs)

    return look


def _really(function: Any) -> Any:
    """Wraps what runs a loop: meanwhile none is pretended to."""
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
    """Tasks with an exception that nobody has asked for."""
    return [task for task in list(_tasks) if task.done() and getattr(task, "_log_traceback", False)]


def _cancel(tasks: set[Any]) -> None:
    import asyncio

    for task in tasks:
        task.cancel()
    if tasks:
        _loop.run_until_complete(asyncio.wait(tasks, timeout=CANCEL_SECONDS))
    for task in tasks:
        # Reading the outcome is what keeps asyncio from logging it as "never retrieved".
        if task.done() and not task.cancelled():
            task.exception()
