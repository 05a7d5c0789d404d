"""An execution followed to its end, over as many connections and servers as it takes.

```text
           POST .../exec                      GET .../execs/{exec}/events?offset=
  ask ───────────────────▶ hearing ──▶ lost ─────────────────────────────▶ hearing ──▶ ... ──▶ done
   ▲                          │
   └──── lost, not heard ─────┘
```

The execution's id is chosen by the client, so asking again for one that a server may or may not
have heard of executes it once. Every event says where to go on after it, so nothing is told twice
and nothing is left out. A run has no id and nothing to go on with: it is asked for again only while
nothing was heard of it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx

from belljar import _calls, _retry
from belljar._aio import _io
from belljar._calls import Call
from belljar._requests import EVENTS
from belljar._sse import Decoder, Heard
from belljar.errors import BelljarError, ProtocolError, ServerUnavailable
from belljar.events import Accepted, Done, Event, Output, Stderr, Stdout, Transcript
from belljar.models import Result

if TYPE_CHECKING:
    from belljar._aio.client import AsyncClient

# A connection that has lasted this long was a good one, even if nothing was said on it: losing it is
# not one more failure in a row.
_LASTING = 5.0


class AsyncStream:
    """What an execution says, as it happens.

    >>> async with session.stream("for i in range(3): print(i)") as stream:
    ...     async for event in stream:
    ...         print(event)

    Leaving a stream early leaves the execution alone: it goes on, and `session.join` finds it
    again. The last event is `Done`.
    """

    def __init__(
        self,
        client: AsyncClient,
        *,
        ask: Call[Any] | None = None,
        session_id: str | None = None,
        exec_id: str | None = None,
        offset: int = 0,
    ) -> None:
        self._client = client
        # What to execute, until the server is known to have heard of it.
        self._ask = ask
        self._session_id = session_id
        self._exec_id = exec_id
        self._transcript = Transcript(offset)
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self._decoder = Decoder()
        self._pending: deque[Heard] = deque()
        # Attempts since something was told last.
        self._attempts: _retry.Attempts | None = None
        self._has_told = False
        # Whether a server is known to have the execution.
        self._is_accepted = ask is None
        # What was told while waiting for that.
        self._early: Event | None = None
        self._opened_at = 0.0
        self._result: Result | None = None
        self._is_closed = False

    @property
    def exec_id(self) -> str | None:
        """The execution's id; that of a run is known with its first event."""
        return self._exec_id

    @property
    def position(self) -> int:
        """Where to go on later: `session.join(stream.exec_id, offset=stream.position)`."""
        return self._transcript.position

    async def accepted(self) -> str:
        """Has it executed, and waits until the server has taken it; returns the execution's id.

        From then on it goes on by itself, and can be fed, interrupted and joined. Without this it
        begins with the first event that is asked for. What the server refuses is raised here.
        """
        while not self._is_accepted and not self._is_closed:
            self._early = await self._hear()
        if self._exec_id is None or not self._is_accepted:
            raise ServerUnavailable("the stream was closed before the execution was accepted")
        return self._exec_id

    async def result(self, on_output: _io.Callback[Output] | None = None) -> Result:
        """Follows the execution to its end, and returns what came of it."""
        async for event in self:
            if on_output is not None and isinstance(event, (Stdout, Stderr)):
                await _io.tell(on_output, event)
        if self._result is None:
            raise ServerUnavailable("the stream was closed before the execution ended")
        if self._transcript.is_whole or self._session_id is None or self._exec_id is None:
            return self._result
        # Joined in the middle: only the server knows how it began.
        info = await self._client._do(_calls.get_exec(self._session_id, self._exec_id))
        return info.result or self._result

    async def interrupt(self) -> bool:
        """Interrupts the execution, as Ctrl-C would; false if it was over already."""
        session, exec_id = self._of_session()
        return await self._client._do(_calls.interrupt(session, exec_id)) > 0

    async def send(self, data: str, *, close: bool = False) -> None:
        """Feeds an execution that was started with `stdin=True`; lines end with a newline."""
        session, exec_id = self._of_session()
        await self._client._do(_calls.stdin(session, exec_id, data, close))

    def _of_session(self) -> tuple[str, str]:
        if self._session_id is None or self._exec_id is None:
            raise ProtocolError("a run without a session can only be followed; closing its stream ends it")
        return self._session_id, self._exec_id

    def __aiter__(self) -> AsyncStream:
        return self

    async def __anext__(self) -> Event:
        event, self._early = self._early, None
        while event is None and self._result is None and not self._is_closed:
            event = await self._hear()
        if event is None:
            raise StopAsyncIteration
        return event

    async def _hear(self) -> Event | None:
        """The next event; None after what is not for users, and after an attempt that failed."""
        try:
            heard = await self._next()
            event = self._transcript.hear(*heard)
        except BelljarError as error:
            await self._hang_up()
            await self._endure(error)
            return None
        self._is_accepted = True
        if self._session_id is not None:
            self._ask = None
        if isinstance(event, Accepted):
            self._exec_id = event.exec_id
            return None
        if event is not None:
            self._attempts, self._has_told = None, True
            if isinstance(event, Done):
                self._result = event.result
                await self._finish()
        return event

    async def _next(self) -> Heard:
        if self._chunks is None:
            await self._open()
        assert self._chunks is not None  # as it was just opened
        while not self._pending:
            try:
                chunk = await self._chunks.__anext__()
            except StopAsyncIteration:
                raise ServerUnavailable(f"the connection to {self._client.url} ended too early") from None
            except (httpx.HTTPError, httpx.StreamError) as error:
                raise _lost(error, self._client.url) from error
            self._pending.extend(self._decoder.feed(chunk))
        return self._pending.popleft()

    async def _open(self) -> None:
        call = self._ask
        if call is None:
            session, exec_id = self._of_session()
            call = _calls.events(session, exec_id, self.position)
        response = await self._client._send(self._client._requests.of(call, accept=EVENTS))
        if not response.is_success or EVENTS not in response.headers.get("content-type", ""):
            body = await self._client._read(response)
            if response.is_success:
                raise ProtocolError(f"what answers at {self._client.url} does not stream events")
            raise _retry.understood(response, body)
        self._response = response
        self._chunks = response.aiter_raw()
        self._decoder = Decoder()
        self._opened_at = time.monotonic()

    async def _endure(self, error: BelljarError) -> None:
        is_run = self._session_id is None
        if is_run and self._has_told:
            # It ended with the connection, and somebody has seen what it said.
            raise error
        has_lasted = time.monotonic() - self._opened_at > _LASTING and self._opened_at > 0
        if self._attempts is None or has_lasted:
            self._attempts = self._client._attempts(is_safe=True)
        self._opened_at = 0.0
        await self._client._endure(self._attempts, error)

    async def _finish(self) -> None:
        """Reads to the end of the answer, so that the connection can be used again."""
        try:
            if self._chunks is not None:
                async for _ in self._chunks:
                    pass
        except (httpx.HTTPError, httpx.StreamError):
            pass
        await self._hang_up()

    async def _hang_up(self) -> None:
        response, self._response, self._chunks = self._response, None, None
        self._pending.clear()
        if response is not None:
            await response.aclose()

    async def aclose(self) -> None:
        """Stops listening. The execution goes on, unless it is a run of its own."""
        self._is_closed = True
        await self._hang_up()

    async def __aenter__(self) -> AsyncStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()


def _lost(error: httpx.HTTPError | httpx.StreamError, where: str) -> BelljarError:
    if isinstance(error, httpx.HTTPError):
        return _retry.failed(error, where)
    return ServerUnavailable(f"the connection to {where} was lost")
