"""Watches a directory of a session for changes."""

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
from belljar._sse import Decoder, ServerEvent
from belljar.errors import ProtocolError, ServerUnavailable

if TYPE_CHECKING:
    from belljar._aio.client import AsyncClient


class AsyncWatch:
    """The changes in a directory (`session.files.watch`), from the moment that the watch is entered, or first iterated,
    until the directory is removed.

    A lost connection raises an error, because changes may have been missed: list the directory, and watch it again.
    """

    def __init__(self, client: AsyncClient, request: Call[Any]) -> None:
        self._client = client
        self._request = request
        self._response: httpx.Response | None = None
        self._chunks: AsyncIterator[bytes] | None = None
        self._decoder = Decoder()
        self._pending: deque[ServerEvent] = deque()
        self._is_over = False

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> FileChange:
        while not self._is_over:
            event = await self._next()
            if event.name == "change":
                return _file_calls.change(event.data)
            if event.name == "gone":
                await self.aclose()
        raise StopAsyncIteration

    async def _next(self) -> ServerEvent:
        if self._chunks is None:
            await self._open()
        assert self._chunks is not None  # `_open` sets it
        while not self._pending:
            try:
                chunk = await self._chunks.__anext__()
            except StopAsyncIteration:
                await self.aclose()
                raise ServerUnavailable(f"the server at {self._client.url} stopped watching") from None
            except (httpx.HTTPError, httpx.StreamError) as error:
                await self.aclose()
                raise ServerUnavailable(f"the connection to {self._client.url} was lost: {error}") from error
            self._pending.extend(self._decoder.feed(chunk))
        return self._pending.popleft()

    async def _open(self) -> None:
        response = await self._client._send(self._client._requests.of(self._request, accept=EVENTS))
        if not response.is_success or EVENTS not in response.headers.get("content-type", ""):
            body = await self._client._read(response)
            if response.is_success:
                raise ProtocolError(f"the server at {self._client.url} did not respond with a stream of events")
            raise _retry.refusal_of(response, body)
        self._response, self._chunks = response, response.aiter_raw()

    async def aclose(self) -> None:
        """Stops watching."""
        self._is_over = True
        response, self._response = self._response, None
        if response is not None:
            await response.aclose()

    async def __aenter__(self) -> AsyncWatch:
        event = await self._next()
        if event.name != "watching":
            self._pending.appendleft(event)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()
