"""What differs between the two clients, here for asyncio and trio: waiting, threads, connections."""

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

# Seconds for a last request to the server when the caller is cancelled.
_CLEANUP_TIMEOUT = 2.0
# How many coroutines `all_of` runs at the same time.
_AT_ONCE = 8

#: Called with every piece of output; may be a coroutine function.
Callback = Callable[[T], "Awaitable[None] | None"]

sleep = anyio.sleep


async def call(callback: Callback[T], value: T) -> None:
    returned = callback(value)
    if inspect.isawaitable(returned):
        await returned


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Runs a function that would block the event loop: reading files, hashing, starting the local server."""
    return await anyio.to_thread.run_sync(function, *args)


async def all_of(calls: list[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of several coroutines, in their order, with a bounded number running at the same time. All run to
    their end; then the first error is raised, if there is one."""
    slots = anyio.Semaphore(_AT_ONCE)
    results: dict[int, T] = {}
    errors: list[Exception] = []

    async def run(number: int, coroutine: Coroutine[Any, Any, T]) -> None:
        async with slots:
            try:
                results[number] = await coroutine
            except Exception as error:
                errors.append(error)

    async with anyio.create_task_group() as group:
        for number, coroutine in enumerate(calls):
            group.start_soon(run, number, coroutine)
    if errors:
        raise errors[0]
    return [results[number] for number in range(len(calls))]


def is_cancellation(error: BaseException) -> bool:
    return isinstance(error, (anyio.get_cancelled_exc_class(), KeyboardInterrupt))


@asynccontextmanager
async def cleanup() -> AsyncIterator[None]:
    """For a last request to the server while the caller is being cancelled. Failures are ignored."""
    with anyio.move_on_after(_CLEANUP_TIMEOUT, shield=True):
        with suppress(BelljarError):
            yield


class Connections:
    """Connections to a server: direct ones with these options of the transport, or through the proxy that the
    environment names."""

    def __init__(self, *, direct: dict[str, Any] | None) -> None:
        self._socket: str | None = direct.get("uds") if direct is not None else None
        self._transport = httpx.AsyncHTTPTransport(**direct) if direct is not None else None
        self._client = httpx.AsyncClient(limits=LIMITS) if direct is None else None

    async def send(self, request: httpx.Request) -> httpx.Response:
        """The response; its body is not read yet."""
        if self._transport is not None:
            if self._socket is not None and not local.may_talk_to(self._socket):
                raise httpx.ConnectError(f"`{self._socket}` does not exist", request=request)
            response = await self._transport.handle_async_request(request)
            response.request = request
            return response
        assert self._client is not None  # exactly one of the two is set
        return await self._client.send(request, stream=True)

    async def aclose(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()
        if self._client is not None:
            await self._client.aclose()


class Pool:
    """Connections for each event loop. They cannot be used in another loop, nor in a forked process."""

    def __init__(self, make: Callable[[], Awaitable[Connections]]) -> None:
        self._make = make
        self._by_loop: WeakKeyDictionary[Any, tuple[int, Connections]] = WeakKeyDictionary()

    async def get(self) -> Connections:
        loop = _loop()
        found = self._by_loop.get(loop)
        if found is not None and found[0] == os.getpid():
            return found[1]
        made = await self._make()
        # Another task may have made some meanwhile.
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
    """Key for an event loop that is not asyncio's, such as trio's."""


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
    """An object that is being created: `await` it, or enter it with `async with`."""

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
