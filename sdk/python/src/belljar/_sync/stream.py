# Generated from ../_aio/stream.py by scripts/generate_sync.py; change that file.
"""Follows one execution to its end, across lost connections and server restarts.

```text
             POST .../exec                          GET .../execs/{exec}/events?offset=
  request ───────────────────▶ events ──▶ lost ─────────────────────────────────▶ events ──▶ ... ──▶ done
     ▲                           │
     └── lost before any event ──┘
```

The client chooses the execution's id, so a request that is sent twice is executed once. Every event carries the offset
after it, so no event is delivered twice and none is missed. A run has no id and cannot be resumed: it is requested
again only while none of its events has arrived.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx

from belljar import _calls, _retry
from belljar._sync import _io
from belljar._calls import Call
from belljar._requests import EVENTS
from belljar._sse import Decoder, ServerEvent
from belljar.errors import BelljarError, ProtocolError, ServerUnavailable
from belljar.events import Accepted, Done, Event, Output, Stderr, Stdout, Transcript
from belljar.models import Result

if TYPE_CHECKING:
    from belljar._sync.client import Client

# Seconds after which a connection counts as successful, even without events: when it is lost, retries start anew.
_STABLE_AFTER = 5.0


class Stream:
    """The events of an execution, while they happen.

    >>> with session.stream("for i in range(3): print(i)") as stream:
    ...     for event in stream:
    ...         print(event)

    Closing a stream early does not end the execution: `session.join` follows it again. The last event is `Done`.
    """

    def __init__(
        self,
        client: Client,
        *,
        request: Call[Any] | None = None,
        session_id: str | None = None,
        exec_id: str | None = None,
        offset: int = 0,
    ) -> None:
        self._client = client
        # The call that starts the execution; None once the server has accepted it.
        self._request = request
        self._session_id = session_id
        self._exec_id = exec_id
        self._transcript = Transcript(offset)
        self._response: httpx.Response | None = None
        self._chunks: Iterator[bytes] | None = None
        self._decoder = Decoder()
        self._pending: deque[ServerEvent] = deque()
        # Attempts since the last event.
        self._attempts: _retry.Attempts | None = None
        self._has_events = False
        # Whether the server has accepted the execution.
        self._is_accepted = request is None
        # An event that arrived while `accepted` waited.
        self._early: Event | None = None
        self._opened_at = 0.0
        self._result: Result | None = None
        self._is_closed = False

    @property
    def exec_id(self) -> str | None:
        """The execution's id. The id of a run is known after its first event."""
        return self._exec_id

    @property
    def position(self) -> int:
        """Where to resume: `session.join(stream.exec_id, offset=stream.position)`."""
        return self._transcript.position

    def accepted(self) -> str:
        """Starts the execution, waits until the server has accepted it, and returns its id.

        From then on it runs without this stream, and can be joined, interrupted and sent input. Without this call the
        execution starts when the first event is requested. If the server refuses it, this raises the error.
        """
        while not self._is_accepted and not self._is_closed:
            self._early = self._receive()
        if self._exec_id is None or not self._is_accepted:
            raise ServerUnavailable("the stream was closed before the execution was accepted")
        return self._exec_id

    def result(self, on_output: _io.Callback[Output] | None = None) -> Result:
        """Follows the execution to its end and returns its result."""
        for event in self:
            if on_output is not None and isinstance(event, (Stdout, Stderr)):
                _io.call(on_output, event)
        if self._result is None:
            raise ServerUnavailable("the stream was closed before the execution ended")
        if self._transcript.is_whole or self._session_id is None or self._exec_id is None:
            return self._result
        # This stream began in the middle of the execution: only the server has the whole result.
        info = self._client._do(_calls.get_exec(self._session_id, self._exec_id))
        return info.result or self._result

    def interrupt(self) -> bool:
        """Interrupts the execution, as Ctrl-C would; false if it had already ended."""
        session, exec_id = self._of_session()
        return self._client._do(_calls.interrupt(session, exec_id)) > 0

    def send(self, data: str, *, close: bool = False) -> None:
        """Sends input to an execution that was started with `stdin=True`. A line ends with a newline."""
        session, exec_id = self._of_session()
        self._client._do(_calls.stdin(session, exec_id, data, close))

    def _of_session(self) -> tuple[str, str]:
        if self._session_id is None or self._exec_id is None:
            raise ProtocolError("a run can only be followed, as it has no session; closing its stream ends it")
        return self._session_id, self._exec_id

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Event:
        event, self._early = self._early, None
        while event is None and self._result is None and not self._is_closed:
            event = self._receive()
        if event is None:
            raise StopIteration
        return event

    def _receive(self) -> Event | None:
        """The next event; None after an internal event, and after an attempt that failed."""
        try:
            event = self._transcript.add(*self._next())
        except BelljarError as error:
            self._disconnect()
            self._wait_before_retry(error)
            return None
        self._is_accepted = True
        if self._session_id is not None:
            self._request = None
        if isinstance(event, Accepted):
            self._exec_id = event.exec_id
            return None
        if event is not None:
            self._attempts, self._has_events = None, True
            if isinstance(event, Done):
                self._result = event.result
                self._finish()
        return event

    def _next(self) -> ServerEvent:
        if self._chunks is None:
            self._open()
        assert self._chunks is not None  # `_open` sets it
        while not self._pending:
            try:
                chunk = self._chunks.__next__()
            except StopIteration:
                raise ServerUnavailable(f"the connection to {self._client.url} ended before the execution") from None
            except (httpx.HTTPError, httpx.StreamError) as error:
                raise _lost(error, self._client.url) from error
            self._pending.extend(self._decoder.feed(chunk))
        return self._pending.popleft()

    def _open(self) -> None:
        call = self._request
        if call is None:
            session, exec_id = self._of_session()
            call = _calls.events(session, exec_id, self.position)
        response = self._client._send(self._client._requests.of(call, accept=EVENTS))
        if not response.is_success or EVENTS not in response.headers.get("content-type", ""):
            body = self._client._read(response)
            if response.is_success:
                raise ProtocolError(f"the server at {self._client.url} did not respond with a stream of events")
            raise _retry.refusal_of(response, body)
        self._response = response
        self._chunks = response.iter_raw()
        self._decoder = Decoder()
        self._opened_at = time.monotonic()

    def _wait_before_retry(self, error: BelljarError) -> None:
        is_run = self._session_id is None
        if is_run and self._has_events:
            # The run ended with its connection, and the caller has already seen some of its events.
            raise error
        was_stable = time.monotonic() - self._opened_at > _STABLE_AFTER and self._opened_at > 0
        if self._attempts is None or was_stable:
            self._attempts = self._client._attempts(is_safe=True)
        self._opened_at = 0.0
        self._client._wait_before_retry(self._attempts, error)

    def _finish(self) -> None:
        """Reads the response to its end, so that the connection can be reused."""
        with suppress(httpx.HTTPError, httpx.StreamError):
            if self._chunks is not None:
                for _ in self._chunks:
                    pass
        self._disconnect()

    def _disconnect(self) -> None:
        response, self._response, self._chunks = self._response, None, None
        self._pending.clear()
        if response is not None:
            response.close()

    def close(self) -> None:
        """Closes the stream. The execution goes on, unless it is a run, which ends."""
        self._is_closed = True
        self._disconnect()

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _lost(error: httpx.HTTPError | httpx.StreamError, where: str) -> BelljarError:
    if isinstance(error, httpx.HTTPError):
        return _retry.failure_of(error, where)
    return ServerUnavailable(f"the connection to {where} was lost")
