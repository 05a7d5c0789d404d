# Generated from ../_aio/sessions.py by scripts/generate_sync.py; change that file.
"""Runs a tool's action in the session of its call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from belljar._sync.session import Session
from belljar.errors import BelljarError, NotFound
from belljar.langgraph._timeline import NO_OPERATION, START, Timeline
from belljar.langgraph._tool import REFUSALS, Answer, Sessions, checkpoint_of, infrastructure, refused
from belljar.manager import Opened


def in_session(
    sessions: Sessions, runtime: Any, action: Callable[[Opened[Session]], Answer]
) -> Answer:
    """Opens the session of this call, restores it to the point of the graph, and performs the action in it."""
    with infrastructure():
        # An error here is a failure: a model cannot help if there is no session.
        opened = _open(sessions, runtime)
        try:
            if sessions.timeline is None:
                return action(opened)
            opened = opened.noting(_align(sessions.timeline, opened, runtime))
            content, artifact = action(opened)
            if "exec_id" not in artifact:
                marker = opened.session.run_command(NO_OPERATION)
                artifact = {**artifact, **checkpoint_of(marker)}
            return content, artifact
        except REFUSALS as error:
            return refused(error, opened)
        except BaseException:
            sessions.manager.tell_later(opened.key, opened.notice)
            raise


def _open(sessions: Sessions, runtime: Any) -> Opened[Session]:
    key = sessions.key(runtime)
    try:
        return sessions.manager.open(key)
    except BelljarError as error:
        if not sessions.reduce_options(error):
            raise
        return sessions.manager.open(key)


def _align(timeline: Timeline, opened: Opened[Session], runtime: Any) -> str | None:
    """Restores the sandbox to the point of the graph; returns a notice if that is not possible."""
    session = opened.session
    with timeline.turn(opened.key):
        if session.info.how == "created":
            session.run_command(NO_OPERATION, exec_id=START)
            session.refresh()
        point = timeline.restore_to(opened.key, session.info.at, runtime)
        if point is None:
            return None
        existing = [checkpoint.exec_id for checkpoint in session.checkpoints()]
        last = point.last_of(existing)
        if last is None:
            return point.missing()
        try:
            session.restore(last)
        except NotFound:
            return point.missing()
        return None
