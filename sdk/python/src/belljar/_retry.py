"""What went wrong with a request, and whether and when to try again.

Rules, without any waiting of their own:

- A refusal with 429 or 503 was not acted upon: any call may be repeated, when the server says.
- Where the connection could not be made, nothing was sent: any call may be repeated.
- Where it was lost later, only calls may be repeated that do no harm twice.
- A server that this client has never heard of is hardly being restarted: it gets a moment only.
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

# How long a server that has gone is waited for: long enough for one to be restarted, or replaced.
PATIENCE = 60.0
# How long one is waited for that has never been seen.
FIRST_PATIENCE = 1.0
_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 2.0
# The server says something every 15 seconds in a stream, if only that it is there.
SILENCE = 45.0


class NotSent(ServerUnavailable):
    """Nobody was there to take the request."""


class Untrusted(ServerUnavailable):
    """Somebody was there, and could not show who it is."""


class Attempts:
    """The attempts at one call, or at one stretch of a stream."""

    def __init__(self, patience: float, *, is_safe: bool, heard_before: bool) -> None:
        self._patience = patience
        self._is_safe = is_safe
        self._heard_before = heard_before
        # Since when it fails: patience is for outages, however long the call itself took until then.
        self._began: float | None = None
        self._count = 0

    def pause(self, error: BelljarError) -> float:
        """How long to wait before trying again; raises the error if that is no use."""
        if not self._may_repeat(error):
            raise error
        if self._began is None:
            self._began = time.monotonic()
        never_there = isinstance(error, NotSent) and not self._heard_before
        patience = min(self._patience, FIRST_PATIENCE) if never_there else self._patience
        left = self._began + patience - time.monotonic()
        pause: float = min(_FIRST_PAUSE * 2.0**self._count, _LONGEST_PAUSE) * random.uniform(0.75, 1.25)
        if error.retry_after is not None:
            # Not all at the same moment, if many were told the same.
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


def understood(response: httpx.Response, body: bytes) -> BelljarError:
    """What the server says against a request."""
    status = response.status_code
    try:
        told = json.loads(body)["error"]
        code, message, hint = told["code"], told["message"], told.get("hint")
    except (ValueError, KeyError, TypeError, AttributeError):
        if status in (502, 503, 504):
            return ServerUnavailable(f"a proxy cannot reach the server, and answers {status}", status=status)
        where = response.request.url.copy_with(query=None)
        return ProtocolError(f"what answers at {where} with {status} is not a belljar server", status=status)
    return refusal(status, code, message, hint, _seconds(response.headers.get("retry-after")))


def _seconds(header: str | None) -> float | None:
    try:
        return max(0.0, float(header)) if header else None
    except ValueError:
        return None


def failed(error: httpx.HTTPError | httpx.InvalidURL, where: str) -> BelljarError:
    """What happened to a request that was not answered."""
    cause = str(error) or type(error).__name__
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        if "CERTIFICATE" in cause.upper() or "SSL" in cause.upper():
            hint = "SSL_CERT_FILE names certificates to believe in"
            return Untrusted(f"{where} cannot show that it is who it says: {cause}", hint=hint)
        hint = "start a server with `belljar serve`, or say where it is with BELLJAR_URL"
        return NotSent(f"nothing listens at {where} ({cause})", hint=hint)
    if isinstance(error, httpx.PoolTimeout):
        return NotSent("too many requests are under way on this client")
    if isinstance(error, httpx.TimeoutException):
        return Timeout(f"{where} did not answer in time")
    if isinstance(error, (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL)):
        return InvalidRequest(f"the request cannot be sent: {cause}")
    return ServerUnavailable(f"the connection to {where} was lost: {cause}")
