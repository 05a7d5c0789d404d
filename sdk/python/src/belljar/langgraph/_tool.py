"""What all tools share: which session a call uses, live output, and which errors are raised.

```text
                     ┌ the code or the arguments are wrong ──▶ text for the model, and an artifact
  a tool's call ─────┤
                     └ the sandbox is broken ────────────────▶ SandboxFailure
```
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from langchain_core.tools import ToolException

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
from belljar.langgraph._images import Content
from belljar.langgraph._render import note
from belljar.langgraph._timeline import Timeline
from belljar.manager import Opened, SessionManager
from belljar.models import Result

#: Returns the key of the session to use. It may take the `ToolRuntime`, which is None without a graph.
SessionKeyFn = Callable[[], str] | Callable[[Any], str]
#: What a tool returns: content for the model, and an artifact for programs.
Answer = tuple[Content, dict[str, Any]]

#: The default of a tool's `runtime`. LangGraph does not inject a parameter whose type includes None; and a parameter
#: without a default would make tools unusable without a graph.
NO_RUNTIME: Any = None

# Errors that a model can react to: with another path, another name, smaller files, a new session.
REFUSALS = (NotFound, Conflict, InvalidRequest, TooLarge, NoSpace, SessionEnded, SourceFailed)


class SandboxFailure(BelljarError, ToolException):
    """The sandbox is broken or cannot be reached: nothing that a model could correct.

    It aborts the run of the graph, unless the tool has `handle_tool_error=True`. `__cause__` is the original error.
    """

    code = "sandbox_failure"


@contextmanager
def infrastructure() -> Iterator[None]:
    """Raises every error of the server as `SandboxFailure`."""
    try:
        yield
    except SandboxFailure:
        raise
    except BelljarError as error:
        raise SandboxFailure(
            f"the sandbox failed: {error.message}", code=error.code, hint=error.hint, status=error.status
        ) from error


class Sessions:
    """Which session a tool's call uses."""

    def __init__(self, manager: SessionManager, session_key_fn: SessionKeyFn | None, *, like_code_tool: bool = False):
        self.manager = manager
        self._key_fn = session_key_fn
        self._like_code_tool = like_code_tool and session_key_fn is None
        #: One for all tools of a manager, as they work in the same sandboxes.
        self.timeline: Timeline | None = manager.timeline(Timeline) if manager.checkpoints else None
        #: Whether a session that the server refused can be created with fewer options, which this then removes.
        self.reduce_options: Callable[[BelljarError], bool] = lambda _: False

    def key(self, runtime: Any) -> str:
        """The key of the session: from the caller's function, else the thread of the run."""
        # Not in __init__: the code tool may be created after this one.
        key_fn = self.manager.code_key_fn if self._like_code_tool else self._key_fn
        if key_fn is None:
            found = thread_of(runtime)
        else:
            call: Callable[..., str] = key_fn
            found = call(runtime) if _takes_an_argument(call) else call()
        return str(found) if found else self.manager.default_key


def thread_of(runtime: Any) -> str | None:
    """The `thread_id` of the run that calls a tool."""
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
    """Passes output to the stream of the graph while it arrives."""
    if runtime is None:
        return None
    emit = getattr(runtime, "emit_output_delta", None)
    if emit is None:
        emit = getattr(runtime, "stream_writer", None)
    if emit is None:
        return None
    send: Callable[[str], None] = emit
    return lambda output: send(output.text)


def refused(error: BelljarError, opened: Opened[Any], advice: str | None = None) -> Answer:
    """The answer for a call that the server refused, with advice for the user."""
    lines = [note(opened.notice), f"It did not work: {error.message}."]
    if advice:
        lines.append(advice)
    if isinstance(error, SessionEnded):
        lines.append(
            "The sandbox has ended, and all variables and imports in it are gone. The next call starts a new one and "
            "says which files are left."
        )
    artifact = {"status": "refused", "code": error.code, "message": error.message, **origin(opened)}
    return "\n".join(line for line in lines if line), artifact


def checkpoint_of(result: Result) -> dict[str, Any]:
    return {"exec_id": result.exec_id, "checkpoint": result.checkpoint}


def origin(opened: Opened[Any]) -> dict[str, Any]:
    return {"session_id": opened.session.id, "session_key": opened.key, "notice": opened.notice}
