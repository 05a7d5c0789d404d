"""Keeps the sandbox of a thread in step with its graph.

The answers of tools are in the graph's state, each with the id of its execution. So the state determines the checkpoint
that the sandbox must be at: the one after the last of these executions. A thread that is replayed, or forked from an
earlier checkpoint of the graph, has an earlier state, and its sandbox is restored before the next call.

```text
  state: ... answer e1, answer e2      sandbox is at e4   ──▶ restore e2, then go on
  state: ... answer e1 ... answer e4   sandbox is at e4   ──▶ go on
```

Calls that a model makes in one message have the same state. Only the first of them restores the sandbox.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

# The id of the first execution in a session: the checkpoint before all others.
START = "start"
# A command without effect, for a checkpoint after something that is not an execution.
NO_OPERATION = ["true"]
# How many threads are remembered with their current step.
_MAX_STEPS = 10_000
# Seconds between two attempts to take a lock without blocking the event loop.
_LOCK_INTERVAL = 0.005


@dataclass(frozen=True)
class Point:
    """A point in the history of a sandbox: the executions of the last answers, of one or several calls in one message,
    and those of them that have checkpoints."""

    execs: tuple[str, ...]
    checkpoints: tuple[str, ...]

    def last_of(self, existing: list[str]) -> str | None:
        """The newest existing checkpoint of this point: with several calls, the one after which all had ended."""
        return next((exec_id for exec_id in reversed(existing) if exec_id in self.checkpoints), None)

    def missing(self) -> str:
        """The notice that the sandbox cannot be restored to this point."""
        return (
            "The conversation went back to an earlier point, and the state of the sandbox at that point is not kept "
            f"any more ({', '.join(self.execs)}). Variables and files are those of later steps."
        )


@dataclass
class _Step:
    """The calls of one message of the model, and which of them have begun."""

    message: str | None
    point: Point
    begun: set[str | None] = field(default_factory=set)


class Timeline:
    """The current step of each thread. Use it within `turn` or `aturn`."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._steps: OrderedDict[str, _Step] = OrderedDict()

    def restore_to(self, key: str, at: str | None, runtime: Any) -> Point | None:
        """The point that the sandbox, which is at the execution `at`, must be restored to; None if it is there."""
        messages = _messages(runtime)
        if messages is None:
            return None
        point = _point(messages, key)
        message, call = _calling_message(messages), getattr(runtime, "tool_call_id", None)
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
    def turn(self, key: str) -> Iterator[None]:
        """Only one call of a thread at a time."""
        with self._lock(key):
            yield

    @asynccontextmanager
    async def aturn(self, key: str) -> AsyncIterator[None]:
        """The same as `turn`, with `async with`. Tools of one thread may run in several event loops, or in none."""
        lock = self._lock(key)
        while not lock.acquire(blocking=False):
            await asyncio.sleep(_LOCK_INTERVAL)
        try:
            yield
        finally:
            lock.release()


def _messages(runtime: Any) -> list[Any] | None:
    """The messages in the graph's state; None without a graph."""
    state = getattr(runtime, "state", None)
    found = state.get("messages") if isinstance(state, dict) else getattr(state, "messages", None)
    return list(found) if found is not None else None


def _point(messages: list[Any], key: str) -> Point:
    """The point after the last answers of this session."""
    answers: list[dict[str, Any]] = []
    for message in reversed(messages):
        artifact = getattr(message, "artifact", None)
        if isinstance(artifact, dict) and artifact.get("session_key") == key and artifact.get("exec_id"):
            answers.append(artifact)
        elif answers and getattr(message, "tool_calls", None):
            break
    if not answers:
        return Point((START,), (START,))
    checkpoints = tuple(artifact["exec_id"] for artifact in answers if artifact.get("checkpoint"))
    return Point(tuple(artifact["exec_id"] for artifact in answers), checkpoints)


def _calling_message(messages: list[Any]) -> str | None:
    """The id of the last message with tool calls."""
    return next((message.id for message in reversed(messages) if getattr(message, "tool_calls", None)), None)
