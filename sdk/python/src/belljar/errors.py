"""The errors that this package raises.

```text
BelljarError ── Refused ──────────────── NotFound, SessionEnded, Conflict, Unauthorized, Forbidden,
  │             the server refused it    InvalidRequest ── TooLarge, TooMany, NoSpace, SourceFailed, ServerError,
  │                                      BrowserError
  ├── ServerUnavailable ── LocalServerError
  ├── Timeout
  ├── ProtocolError, IntegrityError
  └── ExecutionError   the code failed, and the caller called `raise_for_error`
```

Code that fails raises no exception: its `Result` says what happened. Only `Result.raise_for_error()` raises one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from belljar.models import Result

__all__ = [
    "BelljarError",
    "BrowserError",
    "Conflict",
    "ExecutionError",
    "Forbidden",
    "IntegrityError",
    "InvalidRequest",
    "LocalServerError",
    "NoSpace",
    "NotFound",
    "ProtocolError",
    "Refused",
    "ServerError",
    "ServerUnavailable",
    "SessionEnded",
    "SourceFailed",
    "Timeout",
    "TooLarge",
    "TooMany",
    "Unauthorized",
]


class BelljarError(Exception):
    """The base of all errors of this package.

    `code` is stable, for programs; `message` is for people; `hint` says what to do; `status` is the HTTP status, if
    there was a response; `retry_after` is in how many seconds the server wants the request again.
    """

    code: str = "error"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        hint: str | None = None,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        self.hint = hint
        self.status = status
        self.retry_after = retry_after

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are pickled without keyword arguments by default.
        return _restore, (type(self), self.message, dict(self.__dict__))


def _restore(kind: type[BelljarError], message: str, state: dict[str, Any]) -> BelljarError:
    error = kind.__new__(kind, message)
    error.__dict__.update(state)
    return error


class Refused(BelljarError):
    """The server understood the request and refused it."""

    code = "refused"


class NotFound(Refused):
    """There is no such session, execution, artifact, dataset or volume."""

    code = "not_found"


class SessionEnded(Refused):
    """The session has ended: it was stopped, expired or failed. It was not replaced by another one."""

    code = "session_ended"


class Conflict(Refused):
    """The request conflicts with the current state: a busy kernel, or a session with this key and other options."""

    code = "conflict"


class Unauthorized(Refused):
    """The API key is missing, or the server does not know it."""

    code = "unauthorized"


class Forbidden(Refused):
    """The link has expired, or the server does not accept this host or origin."""

    code = "forbidden"


class InvalidRequest(Refused):
    """The request is not valid. Repeating it does not help."""

    code = "invalid"


class TooLarge(InvalidRequest):
    """The request has more bytes than the server accepts."""

    code = "too_large"


class TooMany(Refused):
    """No capacity, a full queue or a rate limit; `retry_after` is in how many seconds to try again."""

    code = "too_many"


class NoSpace(Refused):
    """No space for files, in the sandbox or on the server."""

    code = "no_space"


class SourceFailed(Refused):
    """The server could not fetch a dataset from its source."""

    code = "source_failed"


class BrowserError(Refused):
    """An action of a session's browser failed; `code` is the reason: `navigation_failed`, `page_timeout`,
    `no_such_element`, `stale_ref`, `element_not_usable`, `script_failed`, `download_failed`, `no_such_tab`,
    `page_crashed`, `browser_crashed`, `browser_out_of_memory`, `no_browser`, `no_browser_use`, `task_failed`, ..."""

    code = "browser_failed"


class ServerError(Refused):
    """The server failed; its log has the details."""

    code = "internal"


class ServerUnavailable(BelljarError):
    """The server could not be reached, or the connection was lost, for longer than the client's `patience`."""

    code = "unavailable"


class LocalServerError(ServerUnavailable):
    """The local server could not be started; the message quotes its log."""

    code = "local_server"


class Timeout(BelljarError):
    """The server did not respond in time. Code that runs too long raises no error: see `Result.status`."""

    code = "timeout"


class ProtocolError(BelljarError):
    """The response does not come from a Belljar server, or from one of an incompatible version."""

    code = "protocol"


class IntegrityError(BelljarError):
    """The content that arrived does not match its hash."""

    code = "integrity"


class ExecutionError(BelljarError):
    """The code failed; `result` has the details."""

    code = "execution"

    def __init__(self, message: str, result: Result) -> None:
        super().__init__(message, code=result.status)
        self.result = result


_BY_STATUS: dict[int, type[BelljarError]] = {
    400: InvalidRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    408: Timeout,
    409: Conflict,
    410: SessionEnded,
    413: TooLarge,
    415: InvalidRequest,
    416: InvalidRequest,
    422: InvalidRequest,
    429: TooMany,
    502: SourceFailed,
    503: ServerUnavailable,
    504: SourceFailed,
    507: NoSpace,
}

# For codes whose status is ambiguous, and for errors inside a stream, which have no status.
_BY_CODE: dict[str, type[BelljarError]] = {
    "session_ended": SessionEnded,
    "session_ending": SessionEnded,
    "session_not_found": NotFound,
    "no_room": TooMany,
    "queue_full": TooMany,
    "rate_limited": TooMany,
    "invalid": InvalidRequest,
    "too_large": TooLarge,
    "stopping": ServerUnavailable,
    "no_room_inside": NoSpace,
    "out_of_space": NoSpace,
    "internal": ServerError,
    **dict.fromkeys(
        (
            "answer_too_large",
            "browser_crashed",
            "browser_failed",
            "browser_out_of_memory",
            "download_failed",
            "element_not_usable",
            "navigation_failed",
            "no_browser",
            "no_browser_use",
            "no_such_element",
            "no_such_tab",
            "page_crashed",
            "page_timeout",
            "script_failed",
            "stale_ref",
            "task_failed",
        ),
        BrowserError,
    ),
}


def refusal(
    status: int | None, code: str, message: str, hint: str | None, retry_after: float | None = None
) -> BelljarError:
    """The error for a status and code of the server."""
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status or 0) or (ServerError if (status or 0) >= 500 else Refused)
    return kind(message, code=code, hint=hint, status=status, retry_after=retry_after)
