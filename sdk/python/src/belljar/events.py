"""The events of a stream: an execution while it happens.

>>> for event in session.stream("print('hi'); 6 * 7"):
...     match event:
...         case Stdout(text=text):
...             print(text, end="")
...         case ResultEvent():
...             print(event.bundle.text)
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from belljar.errors import BelljarError, ProtocolError, refusal
from belljar.models import Artifact, Bundle, ErrorInfo, Refusal, Result

__all__ = [
    "ArtifactsEvent",
    "Display",
    "Done",
    "ErrorEvent",
    "Event",
    "InputRequest",
    "Output",
    "ResultEvent",
    "Stderr",
    "Stdout",
]


@dataclass(frozen=True)
class _Event:
    #: Where to resume after this event: `session.join(exec_id, offset=position)`.
    position: int = field(default=0, kw_only=True)


@dataclass(frozen=True)
class Stdout(_Event):
    """Text that the code wrote to standard output."""

    text: str


@dataclass(frozen=True)
class Stderr(_Event):
    """Text that the code wrote to standard error."""

    text: str


@dataclass(frozen=True)
class Display(_Event):
    """A value that the code displayed."""

    bundle: Bundle


@dataclass(frozen=True)
class ResultEvent(_Event):
    """The value of the last expression."""

    bundle: Bundle


@dataclass(frozen=True)
class ErrorEvent(_Event):
    """The exception that ended the code."""

    error: ErrorInfo


@dataclass(frozen=True)
class InputRequest(_Event):
    """The code waits for a line of input: answer with `stream.send("...\\n")`."""

    prompt: str
    password: bool = False


@dataclass(frozen=True)
class ArtifactsEvent(_Event):
    """The artifacts of the execution."""

    artifacts: list[Artifact]
    artifact_map: dict[str, str]
    refused: list[Refusal]


@dataclass(frozen=True)
class Done(_Event):
    """The last event. `result` includes all earlier events that this stream has received."""

    result: Result


Output = Stdout | Stderr
Event = Stdout | Stderr | Display | ResultEvent | ErrorEvent | InputRequest | ArtifactsEvent | Done


@dataclass(frozen=True)
class Accepted:
    """The server has accepted the execution, with this id. Internal."""

    exec_id: str


class Transcript:
    """Converts server-sent events to events of this package, and collects them for the result."""

    def __init__(self, offset: int = 0) -> None:
        self.position = offset
        #: Whether it begins with the first event of the execution.
        self.is_whole = offset == 0
        self._stdout: list[str] = []
        self._stderr: list[str] = []
        self._results: list[Bundle] = []
        self._artifacts: ArtifactsEvent | None = None

    def add(self, name: str, position: int | None, data: bytes) -> Event | Accepted | None:
        """The event; None if this version does not know its name."""
        try:
            value = json.loads(data)
        except ValueError as error:
            raise ProtocolError(f"the server sent an event `{name}` that is not JSON") from error
        if position is not None:
            self.position = position
        try:
            return self._convert(name, value)
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"the server sent an event `{name}` in an unexpected format") from error

    def _convert(self, name: str, value: Any) -> Event | Accepted | None:
        at = self.position
        if name == "stdout":
            self._stdout.append(value["text"])
            return Stdout(value["text"], position=at)
        if name == "stderr":
            self._stderr.append(value["text"])
            return Stderr(value["text"], position=at)
        if name in ("display", "result"):
            bundle = Bundle.model_validate({**(value or {}), "kind": name})
            self._results.append(bundle)
            return Display(bundle, position=at) if name == "display" else ResultEvent(bundle, position=at)
        if name == "error":
            return ErrorEvent(ErrorInfo.model_validate(value), position=at)
        if name == "input":
            return InputRequest(value.get("prompt", ""), bool(value.get("password")), position=at)
        if name == "artifacts":
            self._artifacts = ArtifactsEvent(
                [Artifact.model_validate(artifact) for artifact in value.get("artifacts", [])],
                value.get("artifact_map", {}),
                [Refusal.model_validate(refused) for refused in value.get("artifacts_refused", [])],
                position=at,
            )
            return self._artifacts
        if name == "done":
            return Done(self._result(value), position=at)
        if name == "exec":
            return Accepted(value["exec_id"])
        if name == "failed":
            raise failure(value)
        return None

    def _result(self, done: dict[str, Any]) -> Result:
        output = {"stdout": "".join(self._stdout), "stderr": "".join(self._stderr)}
        artifacts: dict[str, Any] = {}
        if self._artifacts is not None:
            artifacts = {
                "artifacts": self._artifacts.artifacts,
                "artifact_map": self._artifacts.artifact_map,
                "artifacts_refused": self._artifacts.refused,
            }
        return Result.model_validate({**done, **output, **artifacts, "results": self._results})


def failure(value: dict[str, Any]) -> BelljarError:
    """The error of an execution that could not start."""
    error = value["error"]
    return refusal(value.get("status"), error["code"], error["message"], error.get("hint"), value.get("retry_after"))
