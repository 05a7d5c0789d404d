"""Runs a tool's action in the session of its call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from belljar._aio.session import AsyncSession
from belljar.errors import BelljarError, NotFound
from belljar.langgraph._timeline import NO_OPERATION, START, Timeline
from belljar.langgraph._tool import REFUSALS, Answer, Sessions, checkpoint_of, infrastructure, refused
from belljar.manager import Opened


async def in_session(
    sessions: Sessions, runtime: Any, action: Callable[[Opened[AsyncSession]], Awaitable[Answer]]
) -> Answer:
    """Opens the session of this call, restores it to the point of the graph, and performs the action in it."""
    with infrastructure():
        # An error here is a failure: a model cannot help if there is no session.
        opened = await _open(sessions, runtime)
        try:
            if sessions.timeline is None:
                return await action(opened)
            opened = opened.noting(await _align(sessions.timeline, opened, runtime))
            content, artifact = await action(opened)
            if "exec_id" not in artifact:
                marker = await opened.session.run_command(NO_OPERATION)
                artifact = {**artifact, **checkpoint_of(marker)}
            return content, artifact
        except REFUSALS as error:
            return refused(error, opened)
        except BaseException:
            sessions.manager.tell_later(opened.key, opened.notice)
            raise


async def _open(sessions: Sessions, runtime: Any) -> Opened[AsyncSession]:
    key = sessions.key(runtime)
    try:
        return await sessions.manager.aopen(key)
    except BelljarError as error:
        if not sessions.reduce_options(error):
            raise
        return await sessions.manager.aopen(key)


async def _align(timeline: Timeline, opened: Opened[AsyncSession], runtime: Any) -> str | None:
    """Restores the sandbox to the point of the graph; returns a notice if that is not possible."""
    session = opened.session
    async with timeline.aturn(opened.key):
        if session.info.how == "created":
            await session.run_command(NO_OPERATION, exec_id=START)
            await session.refresh()
        point = timeline.restore_to(opened.key, session.info.at, runtime)
        if point is None:
            return None
        existing = [checkpoint.exec_id for checkpoint in await session.checkpoints()]
        last = point.last_of(existing)
        if last is None:
            return point.missing()
        try:
            await session.restore(last)
        except NotFound:
            return point.missing()
        return None
