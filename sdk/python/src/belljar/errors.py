"""What can go wrong, each with what to do about it.

```text
BelljarError ── Refused ──────────── NotFound, SessionEnded, Conflict, Unauthorized, Forbidden,
  │             the server said no   InvalidRequest ── TooLarge, TooMany, NoSpace, SourceFailed, ServerError,
  │                                  BrowserError
  ├── ServerUnavailable ── LocalServerError
  ├── Timeout
  ├── ProtocolError, IntegrityError
  └── ExecutionError   the code failed, and the caller asked to be told so
```

Code that fails is not an error of Belljar's: its `Result` says what happened. Only
`Result.raise_for_error()` makes an exception of it.
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
    """The base of everything this package raises.

    `code` is stable and for programs, `message` is for people, `hint` says what to do, `status` is
    the HTTP status where there was one.
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
        # Keyword arguments are lost on the way to another process otherwise.
        return _restore, (type(self), self.message, dict(self.__dict__))


def _restore(kind: type[BelljarError], message: str, state: dict[str, Any]) -> BelljarError:
    error = kind.__new__(kind, message)
    error.__dict__.update(state)
    return error


class Refused(BelljarError):
    """The server understood, and said no."""

    code = "refused"


class NotFound(Refused):
    """There is no such session, execution, artifact, dataset or volume."""

    code = "not_found"


class SessionEnded(Refused):
    """The session is over: stopped, expired or dead. Nothing in it was replaced behind your back."""

    code = "session_ended"


class Conflict(Refused):
    """It does not go together with what is there: a busy kernel, a different session with this key."""

    code = "conflict"


class Unauthorized(Refused):
    """No API key, or not one that the server knows."""

    code = "unauthorized"


class Forbidden(Refused):
    """A link that has expired, or a host or origin that the server does not serve."""

    code = "forbidden"


class InvalidRequest(Refused):
    """What was asked for makes no sense; asking again will not help."""

    code = "invalid"


class TooLarge(InvalidRequest):
    """More bytes than the server takes."""

    code = "too_large"


class TooMany(Refused):
    """No room, a full queue or a rate limit; `retry_after` says in how many seconds to come back."""

    code = "too_many"


class NoSpace(Refused):
    """No room for files, in the sandbox or on the server."""

    code = "no_space"


class SourceFailed(Refused):
    """A dataset's source did not give it to the server."""

    code = "source_failed"


class BrowserError(Refused):
    """A session's browser could not do what it was asked; `code` says why: `navigation_failed`, `page_timeout`,
    `no_such_element`, `stale_ref`, `element_not_usable`, `script_failed`, `download_failed`, `no_such_tab`,
    `page_crashed`, `browser_crashed`, `browser_out_of_memory`, `no_browser`, `no_browser_use`, `task_failed`, ..."""

    code = "browser_failed"


class ServerError(Refused):
    """The server failed at something it should be able to do; its log says more."""

    code = "internal"


class ServerUnavailable(BelljarError):
    """Nobody there, or the connection was lost, for longer than the client's patience."""

    code = "unavailable"


class LocalServerError(ServerUnavailable):
    """The local server could not be started; the message has its own words."""

    code = "local_server"


class Timeout(BelljarError):
    """The server did not answer in time. Code that runs too long is no such error: see `Result.status`."""

    code = "timeout"


class ProtocolError(BelljarError):
    """What answers is not a Belljar server, or one from another age."""

    code = "protocol"


class IntegrityError(BelljarError):
    """What arrived is not what was sent."""

    code = "integrity"


class ExecutionError(BelljarError):
    """The code failed; `result` says everything about it."""

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

# Where the status alone is not enough, or where there is none: the end of a stream.
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
    """The error that the server's answer stands for."""
    kind = _BY_CODE.get(code) or _BY_STATUS.get(status or 0) or (ServerError if (status or 0) >= 500 else Refused)
    return kind(message, code=code, hint=hint, status=status, retry_after=retry_after)
