"""Makes one LangChain tool, synchronous and asynchronous, from one function.

The function has the tool's parameters and returns a `Work`: the same action for both clients. So the parameters and
their descriptions are written once, and the actions are generated (`_sync.actions` from `_aio.actions`).
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec

from langchain_core.tools import BaseTool, StructuredTool

from belljar._aio.session import AsyncSession
from belljar._sync.session import Session
from belljar.langgraph._aio.sessions import in_session as aio_in_session
from belljar.langgraph._sync.sessions import in_session as sync_in_session
from belljar.langgraph._tool import Answer, Sessions
from belljar.manager import Opened

P = ParamSpec("P")


@dataclass(frozen=True)
class Work:
    """One call of a tool, not started yet."""

    sync: Callable[[], Answer]
    aio: Callable[[], Awaitable[Answer]]


def work(
    sync: Callable[P, Answer], aio: Callable[P, Awaitable[Answer]], *args: P.args, **kwargs: P.kwargs
) -> Work:
    """Calls one of the two functions with these arguments."""
    return Work(lambda: sync(*args, **kwargs), lambda: aio(*args, **kwargs))


def work_in_session(
    sessions: Sessions,
    runtime: Any,
    sync: Callable[Concatenate[Opened[Session], P], Answer],
    aio: Callable[Concatenate[Opened[AsyncSession], P], Awaitable[Answer]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> Work:
    """Calls one of the two functions with the session of this call and these arguments."""
    return Work(
        lambda: sync_in_session(sessions, runtime, lambda opened: sync(opened, *args, **kwargs)),
        lambda: aio_in_session(sessions, runtime, lambda opened: aio(opened, *args, **kwargs)),
    )


def make_tool(function: Callable[..., Work], *, name: str, description: str) -> BaseTool:
    """A tool with the parameters of `function`, whose work is done when the tool is called."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Answer:
        return function(*args, **kwargs).sync()

    @functools.wraps(function)
    async def acall(*args: Any, **kwargs: Any) -> Answer:
        return await function(*args, **kwargs).aio()

    return StructuredTool.from_function(
        func=call,
        coroutine=acall,
        name=name,
        description=description,
        response_format="content_and_artifact",
    )
