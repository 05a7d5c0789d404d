"""What all tools have in common: whose session, live output, and what is raised.

```text
                     ┌ the code, or what was asked for, is wrong ──▶ text for the model, and an artifact
  a tool's call ─────┤
                     └ the sandbox itself is broken ──────────────▶ SandboxFailure
```
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from langchain_core.tools import BaseTool, StructuredTool, ToolException

from belljar._aio.session import AsyncSession
from belljar._sync.session import Session
from belljar.errors import (
    BelljarError,
    Conflict,
    InvalidRequest,
    NoSpace,
    NotFound,
    SessionEnded,
    SourceFailed,
    TooLarge,
)
from belljar.events import Output
from belljar.langgraph._pictures import Content
from belljar.langgraph._render import note
from belljar.langgraph._time import Timeline, amark, mark
from belljar.manager import Opened, SessionManager
from belljar.models import Result

#: Gives the key of the session to use; may take the `ToolRuntime`, which is None outside of a graph.
SessionKeyFn = Callable[[], str] | Callable[[Any], str]
#: What a tool returns: content for the model, and an artifact for programs.
Answer = tuple[Content, dict[str, Any]]

#: The default of a tool's `runtime`. Where it may be None by its type, it is not recognized as what
#: the graph provides; where it must be given, tools cannot be called without a graph.
NO_RUNTIME: Any = None

# What a model can do something about: another path, another name, smaller files, a new session.
REFUSALS = (NotFound, Conflict, InvalidRequest, TooLarge, NoSpace, SessionEnded, SourceFailed)


class SandboxFailure(BelljarError, ToolException):
    """The sandbox is broken or out of reach, and no model can help that.

    It aborts the run, unless the tool has `handle_tool_error=True`. The error itself is `__cause__`.
    """

    code = "sandbox_failure"


@contextmanager
def infrastructure() -> Iterator[None]:
    """Raises whatever the server has to say as a failure of the sandbox."""
    try:
        yield
    except SandboxFailure:
        raise
    except BelljarError as error:
        raise SandboxFailure(
            f"the sandbox failed: {error.message}", code=error.code, hint=error.hint, status=error.status
        ) from error


class Sessions:
    """Opens the right session for a call, and answers where what was asked for is refused."""

    def __init__(self, manager: SessionManager, session_key_fn: SessionKeyFn | None, *, where_code_is: bool = False):
        self.manager = manager
        self._key_fn = session_key_fn
        self._where_code_is = where_code_is and session_key_fn is None
        # One for all tools of a manager: they work in the same sandboxes.
        self._timeline: Timeline | None = manager.timeline(Timeline) if manager.checkpoints else None
        #: Says whether a session that was refused can be had with less.
        self.gave_up: Callable[[BelljarError], bool] = lambda _: False

    def key(self, runtime: Any) -> str:
        """The key of the session: by the caller's function, else the thread of the run."""
        # Looked up late: the code tool may be made after this one.
        key_fn = self.manager.code_key_fn if self._where_code_is else self._key_fn
        if key_fn is None:
            found = thread_of(runtime)
        else:
            call: Callable[..., str] = key_fn
            found = call(runtime) if _takes_an_argument(call) else call()
        return str(found) if found else self.manager.default_key

    def call(self, runtime: Any, action: Callable[[Opened[Session]], Answer]) -> Answer:
        with infrastructure():
            # Not among what the model could help: a session that cannot be had.
            key = self.key(runtime)
            try:
                opened = self.manager.open(key)
            except BelljarError as error:
                if not self.gave_up(error):
                    raise
                opened = self.manager.open(key)
            try:
                if self._timeline is None:
                    return action(opened)
                opened = opened.noting(self._timeline.align(opened, runtime))
                content, artifact = action(opened)
                if "exec_id" not in artifact:
                    artifact = {**artifact, **_kept(mark(opened.session))}
                return content, artifact
            except REFUSALS as error:
                return refused(error, opened)
            except BaseException:
                self.manager.tell_later(opened.key, opened.notice)
                raise

    async def acall(self, runtime: Any, action: Callable[[Opened[AsyncSession]], Awaitable[Answer]]) -> Answer:
        with infrastructure():
            key = self.key(runtime)
            try:
                opened = await self.manager.aopen(key)
            except BelljarError as error:
                if not self.gave_up(error):
                    raise
                opened = await self.manager.aopen(key)
            try:
                if self._timeline is None:
                    return await action(opened)
                opened = opened.noting(await self._timeline.aalign(opened, runtime))
                content, artifact = await action(opened)
                if "exec_id" not in artifact:
                    artifact = {**artifact, **_kept(await amark(opened.session))}
                return content, artifact
            except REFUSALS as error:
                return refused(error, opened)
            except BaseException:
                self.manager.tell_later(opened.key, opened.notice)
                raise


def thread_of(runtime: Any) -> str | None:
    """The `thread_id` of the run that a tool is called in."""
    if runtime is None:
        return None
    thread = ((getattr(runtime, "config", None) or {}).get("configurable") or {}).get("thread_id")
    return str(thread) if thread else None


def _takes_an_argument(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(
        parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        and parameter.default is parameter.empty
        for parameter in parameters
    )


def live(runtime: Any) -> Callable[[Output], None] | None:
    """Passes output on while it comes, to whoever streams the graph."""
    if runtime is None:
        return None
    emit = getattr(runtime, "emit_output_delta", None)
    if emit is None:
        writer = getattr(runtime, "stream_writer", None)
        if writer is None:
            return None
        emit = writer
    told = emit
    return lambda output: told(output.text)


def refused(error: BelljarError, opened: Opened[Any], advice: str | None = None) -> Answer:
    """What did not work, for the model to try something else, and what the user can do about it."""
    said = [note(opened.notice), f"It did not work: {error.message}."]
    if advice:
        said.append(advice)
    if isinstance(error, SessionEnded):
        said.append(
            "The sandbox has ended, and all variables and imports in it are gone. The next call begins anew and says "
            "which files are left."
        )
    artifact = {"status": "refused", "code": error.code, "message": error.message, **origin(opened)}
    return "\n".join(line for line in said if line), artifact


def _kept(result: Result) -> dict[str, Any]:
    return {"exec_id": result.exec_id, "checkpoint": result.checkpoint}


def origin(opened: Opened[Any]) -> dict[str, Any]:
    return {"session_id": opened.session.id, "session_key": opened.key, "notice": opened.notice}


def make_tool(function: Callable[..., Any], coroutine: Callable[..., Any], *, name: str, description: str) -> BaseTool:
    return StructuredTool.from_function(
        func=function,
        coroutine=coroutine,
        name=name,
        description=description,
        response_format="content_and_artifact",
    )
