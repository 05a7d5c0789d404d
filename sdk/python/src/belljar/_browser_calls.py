"""Calls about the browser of a session, described once for both clients."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from belljar._calls import Call, _at, _given, _model, new_exec_id
from belljar.errors import ProtocolError, refusal
from belljar.models import Artifact, Result, _Told

#: How far a page must have come: `networkidle` is half a second without any request.
Until = Literal["commit", "domcontentloaded", "load", "networkidle", "none"]

# What the server allows an action unless told, and how much longer it may take to say so: to start a browser, and to
# wait for earlier actions.
_TIMEOUT = 30.0
_SLACK = 90.0


class BrowserTab(_Told):
    """A tab of a session's browser."""

    tab: int
    url: str
    title: str


class BrowserDialog(_Told):
    """What a page said in a dialog, which was accepted: `type` is alert, confirm, prompt or beforeunload."""

    type: str
    message: str


class Download(_Told):
    """A file that a page gave; `path` is where it is in the session."""

    path: str
    size: int
    url: str
    mime: str | None = None


class BrowserState(_Told):
    """Where a session's browser is after an action.

    `browser` says what became of earlier pages: `kept`, `started`, `restored` (it had been stopped while idle), `lost`
    (it had crashed; see `note`) or `stopped`. `result` is what the action itself has to say.
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


class Screenshot(_Told):
    """A picture: its bytes, and the artifact that it is."""

    png: bytes
    artifact: Artifact
    width: int
    height: int
    #: Rows of the page that did not fit into one picture.
    cut_off: int = 0

    def _repr_png_(self) -> bytes:
        return self.png


class TaskResult(_Told):
    """What came of a task. `log` tells its steps, `success` what the model says of them."""

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
    # The server does it once, however often it is asked with the same id.
    body = {"exec_id": new_exec_id(), **_given(**fields)}
    timeout = (fields.get("timeout") or _TIMEOUT) + _SLACK
    return Call("POST", _at(session, "browser", action), _state, body=body, is_safe=True, timeout=timeout)


def as_execution(call: Call[BrowserState]) -> Call[Result]:
    """The same, to be followed as a stream."""
    return Call(call.method, call.path, _model(Result), body=call.body, is_safe=True)


def state_of(result: Result) -> BrowserState:
    """What an action that was followed has answered; its failure is raised, as the server would have told it."""
    told = next((bundle.data.get("application/json") for bundle in reversed(result.results)), None)
    if result.status == "ok" and isinstance(told, dict):
        artifacts = [artifact.model_dump() for artifact in result.artifacts]
        return BrowserState.model_validate({**told, "artifacts": artifacts})
    if result.error is not None:
        raise refusal(422, result.error.name, result.error.value, result.error.traceback or None)
    if result.status == "ok":
        raise ProtocolError("the browser answered in an unknown way")
    code = "page_timeout" if result.status == "timeout" else "browser_crashed"
    raise refusal(422, code, result.reason or f"the action ended: {result.status}", None)
