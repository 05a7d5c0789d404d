"""What changes in a directory of a session."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import httpx

from belljar import _file_calls, _retry
from belljar._calls import Call
from belljar._file_calls import FileChange
from belljar._requests import EVENTS
from belljar._sse import Decoder, Heard
from belljar.errors import ProtocolError, ServerUnavailable

if TYPE_CHECKING:
    from belljar._aio.client import AsyncClient


class AsyncWatch:
    """Changes in a directory (`session.files.watch`), from when it is entered, or first asked, until the directory is
    gone.

    If the connection is lost, so may be changes: that is an error, and for you to look and to watch again.
    """

    def __init__(self, client: AsyncClient, ask: Call[Any]) -> None:
        self._client = client
        self._ask = ask
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self._decoder = Decoder()
        self._pending: deque[Heard] = deque()
        self._is_over = False

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> FileChange:
        while not self._is_over:
            heard = await self._next()
            if heard.name == "change":
                return _file_calls.change(heard.data)
            if heard.name == "gone":
                await self.aclose()
        raise StopAsyncIteration

    async def _next(self) -> Heard:
        if self._chunks is None:
            await self._open()
        assert self._chunks is not None  # as it was just opened
        while not self._pending:
            try:
                chunk = await self._chunks.__anext__()
            except StopAsyncIteration:
                await self.aclose()
                raise ServerUnavailable(f"{self._client.url} has stopped watching") from None
            except (httpx.HTTPError, httpx.StreamError) as error:
                await self.aclose()
                raise ServerUnavailable(f"the connection to {self._client.url} was lost: {error}") from error
            self._pending.extend(self._decoder.feed(chunk))
        return self._pending.popleft()

    async def _open(self) -> None:
        response = await self._client._send(self._client._requests.of(self._ask, accept=EVENTS))
        if not response.is_success or EVENTS not in response.headers.get("content-type", ""):
            body = await self._client._read(response)
            if response.is_success:
                raise ProtocolError(f"what answers at {self._client.url} does not stream events")
            raise _retry.understood(response, body)
        self._response, self._chunks = response, response.aiter_raw()

    async def aclose(self) -> None:
        """Stops watching."""
        self._is_over = True
        response, self._response = self._response, None
        if response is not None:
            await response.aclose()

    async def __aenter__(self) -> AsyncWatch:
        heard = await self._next()
        if heard.name != "watching":
            self._pending.appendleft(heard)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
