"""Decides whether and when a failed request is sent again. Nothing here waits.

- After 429 or 503 the server has done nothing: every call may be repeated, after the time that the server names.
- If the connection could not be made, nothing was sent: every call may be repeated.
- If the connection was lost later, only calls that are safe to repeat are repeated.
- A server that has never responded is probably not being restarted: it is retried for one second only.
"""

from __future__ import annotations

import json
import random
import time

import httpx

from belljar.errors import (
    BelljarError,
    InvalidRequest,
    LocalServerError,
    ProtocolError,
    ServerUnavailable,
    Timeout,
    TooMany,
    refusal,
)

# Seconds to retry a server that cannot be reached: long enough for it to be restarted or replaced.
PATIENCE = 60.0
# Seconds to retry a server that has never responded.
FIRST_PATIENCE = 1.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
# The server sends something on a stream at least every 15 seconds.
STREAM_TIMEOUT = 45.0


class NotSent(ServerUnavailable):
    """The request was not sent, because there was no connection."""


class Untrusted(ServerUnavailable):
    """The server's certificate is not valid."""


class Attempts:
    """The attempts to send one call, or to continue one stream."""

    def __init__(self, patience: float, *, is_safe: bool, has_responded: bool) -> None:
        self._patience = patience
        self._is_safe = is_safe
        self._has_responded = has_responded
        # The time of the first failure: the limit counts from there, not from the beginning of the call.
        self._failing_since: float | None = None
        self._count = 0

    def pause(self, error: BelljarError) -> float:
        """Seconds to wait before the next attempt; raises the error if there is to be none."""
        if not self._may_repeat(error):
            raise error
        if self._failing_since is None:
            self._failing_since = time.monotonic()
        is_unknown_server = isinstance(error, NotSent) and not self._has_responded
        patience = min(self._patience, FIRST_PATIENCE) if is_unknown_server else self._patience
        left = self._failing_since + patience - time.monotonic()
        pause: float = min(_FIRST_PAUSE * 2.0**self._count, _LONGEST_PAUSE) * random.uniform(0.75, 1.25)
        if error.retry_after is not None:
            # Clients that got the same time must not all come back at the same moment.
            pause = error.retry_after * random.uniform(1.0, 1.1)
        if pause > left:
            raise error
        self._count += 1
        return pause

    def _may_repeat(self, error: BelljarError) -> bool:
        if isinstance(error, (Untrusted, LocalServerError)):
            return False
        if isinstance(error, (NotSent, TooMany)) or (error.status == 503 and isinstance(error, ServerUnavailable)):
            return True
        return self._is_safe and isinstance(error, (ServerUnavailable, Timeout))


def refusal_of(response: httpx.Response, body: bytes) -> BelljarError:
    """The error that a response with an error status stands for."""
    status = response.status_code
    try:
        error = json.loads(body)["error"]
        code, message, hint = error["code"], error["message"], error.get("hint")
    except (ValueError, KeyError, TypeError, AttributeError):
        if status in (502, 503, 504):
            return ServerUnavailable(f"a proxy cannot reach the server: it responded with {status}", status=status)
        where = response.request.url.copy_with(query=None)
        return ProtocolError(f"the response {status} of {where} does not come from a Belljar server", status=status)
    return refusal(status, code, message, hint, _seconds(response.headers.get("retry-after")))


def _seconds(header: str | None) -> float | None:
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:
        return None


def failure_of(error: httpx.HTTPError | httpx.InvalidURL, where: str) -> BelljarError:
    """The error for a request without a response."""
    cause = str(error) or type(error).__name__
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        if "CERTIFICATE" in cause.upper() or "SSL" in cause.upper():
            hint = "set SSL_CERT_FILE to a file with the certificates to trust"
            return Untrusted(f"the certificate of {where} is not valid: {cause}", hint=hint)
        hint = "start a server with `belljar serve`, or set BELLJAR_URL to its address"
        return NotSent(f"nothing listens at {where} ({cause})", hint=hint)
    if isinstance(error, httpx.PoolTimeout):
        return NotSent("this client has too many open requests")
    if isinstance(error, httpx.TimeoutException):
        return Timeout(f"{where} did not respond in time")
    if isinstance(error, (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL)):
        return InvalidRequest(f"the request cannot be sent: {cause}")
    return ServerUnavailable(f"the connection to {where} was lost: {cause}")
