"""Keeps the sandbox of a thread where its graph is.

What tools answered stands in the graph's state, with the execution that each answer came from. So the state says what
the sandbox must be: what it was after the last of them. A thread that is replayed, or taken down another branch from an
earlier checkpoint, comes with an earlier state, and its sandbox goes back before anything is done in it.

```text
  state: ... answer e1, answer e2      sandbox is at e4   ──▶ restore e2, then go on
  state: ... answer e1 ... answer e4   sandbox is at e4   ──▶ go on
```

Calls that a model makes all at once come with the same state. Only the first of them takes the sandbox back.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from belljar._aio.session import AsyncSession
from belljar._sync.session import Session
from belljar.errors import NotFound
from belljar.manager import Opened
from belljar.models import Result

# The execution that comes before all others: there to be gone back to.
START = "start"
_NOTHING = ["true"]
# How many threads are remembered with the step they are at.
_MAX_STEPS = 10_000
_LOOK = 0.005


@dataclass
class _Step:
    """What a model asked for all at once, and which of it was begun."""

    message: str | None
    point: _Point
    begun: set[str | None] = field(default_factory=set)


@dataclass(frozen=True)
class _Point:
    """The answers that came last, of one or several calls at once, by their executions, and which of these can be gone
    back to."""

    execs: tuple[str, ...]
    kept: tuple[str, ...]


class Timeline:
    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._steps: OrderedDict[str, _Step] = OrderedDict()

    def align(self, opened: Opened[Session], runtime: Any) -> str | None:
        """Takes the sandbox where the graph is; says so if that cannot be."""
        session = opened.session
        with self._turn(opened.key):
            if session.info.how == "created":
                session.run_command(_NOTHING, exec_id=START)
                session.refresh()
            point = self._leads_back(opened.key, session.info.at, runtime)
            if point is None:
                return None
            there = [checkpoint.exec_id for checkpoint in session.checkpoints()]
            last = _last(point, there)
            if last is None:
                return _not_kept(point)
            try:
                session.restore(last)
            except NotFound:
                return _not_kept(point)
            return None

    async def aalign(self, opened: Opened[AsyncSession], runtime: Any) -> str | None:
        """The same as `align`, to be awaited."""
        session = opened.session
        async with self._aturn(opened.key):
            if session.info.how == "created":
                await session.run_command(_NOTHING, exec_id=START)
                await session.refresh()
            point = self._leads_back(opened.key, session.info.at, runtime)
            if point is None:
                return None
            there = [checkpoint.exec_id for checkpoint in await session.checkpoints()]
            last = _last(point, there)
            if last is None:
                return _not_kept(point)
            try:
                await session.restore(last)
            except NotFound:
                return _not_kept(point)
            return None

    def _leads_back(self, key: str, at: str | None, runtime: Any) -> _Point | None:
        """Where to go back to; None if the sandbox is where it should be."""
        messages = _messages(runtime)
        if messages is None:
            return None
        point = _point(messages, key)
        message, call = _asked(messages), getattr(runtime, "tool_call_id", None)
        step = self._steps.get(key)
        if step is not None and (step.message, step.point) == (message, point) and call not in step.begun:
            step.begun.add(call)
            return None
        self._steps[key] = _Step(message, point, {call})
        self._steps.move_to_end(key)
        if len(self._steps) > _MAX_STEPS:
            self._steps.popitem(last=False)
        return None if at in point.execs else point

    def _lock(self, key: str) -> threading.Lock:
        with self._guard:
            return self._locks.setdefault(key, threading.Lock())

    @contextmanager
    def _turn(self, key: str) -> Iterator[None]:
        with self._lock(key):
            yield

    @asynccontextmanager
    async def _aturn(self, key: str) -> AsyncIterator[None]:
        # Tools of one thread may be called in several event loops, and without any.
        lock = self._lock(key)
        while not lock.acquire(blocking=False):
            await asyncio.sleep(_LOOK)
        try:
            yield
        finally:
            lock.release()


def mark(session: Session) -> Result:
    """A point to go back to after something that was no execution."""
    return session.run_command(_NOTHING)


async def amark(session: AsyncSession) -> Result:
    return await session.run_command(_NOTHING)


def _messages(runtime: Any) -> list[Any] | None:
    """The messages in the graph's state; None outside of one."""
    state = getattr(runtime, "state", None)
    found = state.get("messages") if isinstance(state, dict) else getattr(state, "messages", None)
    return list(found) if found is not None else None


def _point(messages: list[Any], key: str) -> _Point:
    told: list[dict[str, Any]] = []
    for message in reversed(messages):
        artifact = getattr(message, "artifact", None)
        if isinstance(artifact, dict) and artifact.get("session_key") == key and artifact.get("exec_id"):
            told.append(artifact)
        elif told and getattr(message, "tool_calls", None):
            break
    if not told:
        return _Point((START,), (START,))
    kept = tuple(artifact["exec_id"] for artifact in told if artifact.get("checkpoint"))
    return _Point(tuple(artifact["exec_id"] for artifact in told), kept)


def _last(point: _Point, there: list[str]) -> str | None:
    """The last of several that ended: by then all of them had."""
    return next((exec_id for exec_id in reversed(there) if exec_id in point.kept), None)


def _asked(messages: list[Any]) -> str | None:
    """The message in which the model asks for what is done now."""
    return next((message.id for message in reversed(messages) if getattr(message, "tool_calls", None)), None)


def _not_kept(point: _Point) -> str:
    return (
        "The conversation went back to an earlier point, and the state of the sandbox at that point is not kept any "
        f"more ({', '.join(point.execs)}). Variables and files are those of later steps."
    )
