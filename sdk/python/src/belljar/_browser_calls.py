"""Requests about the browser of a session, described once for both clients."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from belljar._calls import Call, _at, _model, new_exec_id
from belljar._options import given
from belljar.errors import ProtocolError, refusal
from belljar.models import Artifact, Result, ServerModel

# The server's default time limit of an action, and how many seconds longer the response may take: to start a browser,
# and to wait for earlier actions.
_TIMEOUT = 30.0
_SLACK = 90.0


class BrowserTab(ServerModel):
    """A tab of a session's browser."""

    tab: int
    url: str
    title: str


class BrowserDialog(ServerModel):
    """A dialog that a page opened and that was accepted: `type` is alert, confirm, prompt or beforeunload."""

    type: str
    message: str


class Download(ServerModel):
    """A downloaded file; `path` is its path in the session."""

    path: str
    size: int
    url: str
    mime: str | None = None


class BrowserState(ServerModel):
    """The state of a session's browser after an action.

    `browser` says what happened to earlier pages: `kept`, `started`, `restored` (the browser had been stopped while
    idle), `lost` (it had crashed; see `note`) or `stopped`. `result` is the result of the action itself.
    """

    browser: str
    tabs: list[BrowserTab]
    result: dict[str, Any] = Field(default_factory=dict)
    note: str | None = None
    tab: int | None = None
    url: str | None = None
    title: str | None = None
    dialogs: list[BrowserDialog] = Field(default_factory=list)
    downloads: list[Download] = Field(default_factory=list)
    artifacts: list[Artifact] = Field(default_factory=list)


class Screenshot(ServerModel):
    """A screenshot: its bytes, and the artifact that holds it."""

    png: bytes
    artifact: Artifact
    width: int
    height: int
    #: How many rows of pixels at the end of the page are missing, because the page is too long for one image.
    cut_off: int = 0

    def _repr_png_(self) -> bytes:
        return self.png


class TaskResult(ServerModel):
    """The result of a task. `log` describes its steps; `success` is the model's own judgement."""

    answer: str
    success: bool
    steps: int
    urls: list[str] = Field(default_factory=list)
    errors: list[str] = Field(default_factory=list)
    log: str = ""
    state: BrowserState


_state = _model(BrowserState)


def status(session: str) -> Call[BrowserState]:
    return Call("GET", _at(session, "browser"), _state, is_safe=True, timeout=_TIMEOUT + _SLACK)


def act(session: str, action: str, fields: dict[str, Any]) -> Call[BrowserState]:
    # The server performs an action once, however often it gets the same id.
    body = {"exec_id": new_exec_id(), **given(**fields)}
    timeout = (fields.get("timeout") or _TIMEOUT) + _SLACK
    return Call("POST", _at(session, "browser", action), _state, body=body, is_safe=True, timeout=timeout)


def as_execution(call: Call[BrowserState]) -> Call[Result]:
    """The same call, to be followed as a stream."""
    return Call(call.method, call.path, _model(Result), body=call.body, is_safe=True)


def state_of(result: Result) -> BrowserState:
    """The state that an action, followed as a stream, has returned. Raises the error of an action that failed."""
    state = next((bundle.data.get("application/json") for bundle in reversed(result.results)), None)
    if result.status == "ok" and isinstance(state, dict):
        artifacts = [artifact.model_dump() for artifact in result.artifacts]
        return BrowserState.model_validate({**state, "artifacts": artifacts})
    if result.error is not None:
        raise refusal(422, result.error.name, result.error.value, result.error.traceback or None)
    if result.status == "ok":
        raise ProtocolError("the browser's response has an unexpected format")
    code = "page_timeout" if result.status == "timeout" else "browser_crashed"
    raise refusal(422, code, result.reason or f"the action ended: {result.status}", None)
