"""What differs between the two halves, for this one: asyncio, or trio, through anyio."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread
import httpx

from belljar import local
from belljar._requests import LIMITS
from belljar.errors import BelljarError

T = TypeVar("T")

# How long whoever is cancelled may take to tell the server so.
_LAST_WORDS = 2.0

#: Called for every piece of output; may be a coroutine function.
Callback = Callable[[T], "Awaitable[None] | None"]

sleep = anyio.sleep


async def tell(callback: Callback[T], value: T) -> None:
    answer = callback(value)
    if inspect.isawaitable(answer):
        await answer


async def work(function: Callable[..., T], *args: Any) -> T:
    """Runs what would hold up everybody else: reading files, hashing, starting the local server."""
    return await anyio.to_thread.run_sync(function, *args)


def is_cancellation(error: BaseException) -> bool:
    return isinstance(error, (anyio.get_cancelled_exc_class(), KeyboardInterrupt))


@asynccontextmanager
async def last_words() -> AsyncIterator[None]:
    """A moment in which something can still be said, though we are being cancelled."""
    with anyio.move_on_after(_LAST_WORDS, shield=True):
        with suppress(BelljarError):
            yield


class Line:
    """Connections to a server: straight, or as the environment wants it, through a proxy."""

    def __init__(self, *, straight: dict[str, Any] | None) -> None:
        self._socket: str | None = straight.get("uds") if straight is not None else None
        self._transport = httpx.AsyncHTTPTransport(**straight) if straight is not None else None
        self._client = httpx.AsyncClient(limits=LIMITS) if straight is None else None

    async def send(self, request: httpx.Request) -> httpx.Response:
        """The answer, with its body still to be read."""
        if self._transport is not None:
            if self._socket is not None and not local.may_talk_to(self._socket):
                raise httpx.ConnectError(f"there is no `{self._socket}`", request=request)
            response = await self._transport.handle_async_request(request)
            response.request = request
            return response
        assert self._client is not None  # as it is one or the other
        return await self._client.send(request, stream=True)

    async def aclose(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()
        if self._client is not None:
            await self._client.aclose()


class Pool:
    """Connections, apart for every event loop: they are of no use in another. Nor after a fork."""

    def __init__(self, make: Callable[[], Awaitable[Line]]) -> None:
        self._make = make
        self._by_loop: WeakKeyDictionary[Any, tuple[int, Line]] = WeakKeyDictionary()

    async def get(self) -> Line:
        loop = _loop()
        found = self._by_loop.get(loop)
        if found is not None and found[0] == os.getpid():
            return found[1]
        made = await self._make()
        # Somebody else may have made one while we waited.
        found = self._by_loop.get(loop)
        if found is not None and found[0] == os.getpid():
            await made.aclose()
            return found[1]
        self._by_loop[loop] = (os.getpid(), made)
        return made

    async def aclose(self) -> None:
        found = self._by_loop.pop(_loop(), None)
        self._by_loop.clear()
        if found is not None and found[0] == os.getpid():
            await found[1].aclose()


class _OtherLoop:
    """Stands for the loop where it is not asyncio's."""


_OTHER_LOOP = _OtherLoop()


def _loop() -> Any:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return _OTHER_LOOP


class _Entered(Protocol):
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


E = TypeVar("E", bound=_Entered)


class Opening(Generic[E]):
    """Something that is being made: `await` it, or enter it with `async with`."""

    def __init__(self, making: Coroutine[Any, Any, E]) -> None:
        self._making = making
        self._made: E | None = None

    def __await__(self) -> Generator[Any, Any, E]:
        return self._making.__await__()

    async def __aenter__(self) -> E:
        self._made = await self._making
        return self._made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._made is not None:
            await self._made.__aexit__(kind, error, traceback)


def opening(making: Coroutine[Any, Any, E]) -> Opening[E]:
    return Opening(making)
