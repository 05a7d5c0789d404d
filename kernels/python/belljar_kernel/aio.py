"""The event loop behind top-level `await`.

One loop lives as long as the kernel, so a client or a lock made in one cell still works in the next. It only
turns while a cell awaits; tasks left over pause in between. asyncio costs 30 ms to import and is loaded by
the first cell that awaits.
"""

from __future__ import annotations

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from typing import Any, Coroutine


# How long tasks that are being cancelled may take to clean up after an interrupt or at shutdown.
CANCEL_SECONDS = 2.0

_loop: Any = None


def run(coroutine: Coroutine) -> Any:
    """Runs a cell's coroutine to its end and returns its value."""
    import asyncio

    global _loop
    if _loop is None or _loop.is_closed():
        _loop = asyncio.new_event_loop()
        asyncio.set_event_loop(_loop)
    task = _loop.create_task(coroutine)
    try:
        return _loop.run_until_complete(task)
    except KeyboardInterrupt:
        # The interrupt may have hit the loop itself, with the cell's task still pending; that task and all
        # others would otherwise go on in the next cell that awaits.
        _cancel_all()
        raise


def close() -> None:
    """At shutdown: ends what is left, without the warnings of a loop that is simply dropped."""
    if _loop is not None and not _loop.is_closed():
        _cancel_all()
        _loop.close()


def forget() -> None:
    """In a forked child: the loop's selector is shared with the parent and must not be touched."""
    global _loop
    _loop = None


def descriptors() -> list[int]:
    """What the loop has open for itself."""
    if _loop is None or _loop.is_closed():
        return []
    return [_loop._selector.fileno(), _loop._ssock.fileno(), _loop._csock.fileno()]


def reopen() -> None:
    """In a kernel that was made of files: the loop is as it was, but for its descriptors, which are gone."""
    if _loop is None or _loop.is_closed():
        return
    import selectors

    # Their numbers may be somebody else's by now, so they are not closed.
    for sock in (_loop._ssock, _loop._csock):
        sock.detach()
    _loop._selector = selectors.DefaultSelector()
    _loop._internal_fds -= 1
    _loop._make_self_pipe()


def _cancel_all() -> None:
    import asyncio

    tasks = asyncio.all_tasks(_loop)
    for task in tasks:
        task.cancel()
    if tasks:
        _loop.run_until_complete(asyncio.wait(tasks, timeout=CANCEL_SECONDS))
    for task in tasks:
        # Reading the outcome is what keeps asyncio from logging it as "never retrieved".
        if task.done() and not task.cancelled():
            task.exception()
