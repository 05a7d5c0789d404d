"""What differs between the two clients, here for threads: waiting, connections."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated, Any, TypeVar

import httpx

from belljar import local
from belljar._requests import LIMITS
from belljar.errors import BelljarError

T = TypeVar("T")

#: Called with every piece of output.
Callback = Callable[[T], None]

sleep = time.sleep


def call(callback: Callback[T], value: T) -> None:
    callback(value)


def in_thread(function: Callable[..., T], *args: Any) -> T:
    return function(*args)


def all_of(results: list[T]) -> list[T]:
    return results


def is_cancellation(error: BaseException) -> bool:
    return isinstance(error, KeyboardInterrupt)


@contextmanager
def cleanup() -> Iterator[None]:
    """For a last request to the server after an error. Failures are ignored."""
    with suppress(BelljarError):
        yield


class Connections:
    """Connections to a server: direct ones with these options of the transport, or through the proxy that the
    environment names."""

    def __init__(self, *, direct: dict[str, Any] | None) -> None:
        self._socket: str | None = direct.get("uds") if direct is not None else None
        self._transport = httpx.HTTPTransport(**direct) if direct is not None else None
        self._client = httpx.Client(limits=LIMITS) if direct is None else None

    def send(self, request: httpx.Request) -> httpx.Response:
        """The response; its body is not read yet."""
        if self._transport is not None:
            if self._socket is not None and not local.may_talk_to(self._socket):
                raise httpx.ConnectError(f"`{self._socket}` does not exist", request=request)
            response = self._transport.handle_request(request)
            response.request = request
            return response
        assert self._client is not None  # exactly one of the two is set
        return self._client.send(request, stream=True)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if self._client is not None:
            self._client.close()


class Pool:
    """Connections that all threads share. A forked process makes its own."""

    def __init__(self, make: Callable[[], Connections]) -> None:
        self._make = make
        self._found: tuple[int, Connections] | None = None
        self._lock = threading.Lock()
        self._lock_pid = os.getpid()

    def _own_lock(self) -> threading.Lock:
        if self._lock_pid != os.getpid():
            # A thread of the parent may have held the lock; that thread does not exist here.
            self._lock, self._lock_pid = threading.Lock(), os.getpid()
        return self._lock

    def get(self) -> Connections:
        found = self._found
        if found is not None and found[0] == os.getpid():
            return found[1]
        with self._own_lock():
            found = self._found
            if found is None or found[0] != os.getpid():
                found = self._found = (os.getpid(), self._make())
            return found[1]

    def close(self) -> None:
        with self._own_lock():
            found, self._found = self._found, None
        if found is not None and found[0] == os.getpid():
            found[1].close()


E = TypeVar("E")

#: The object itself: there is nothing to wait for.
Opening = Annotated[E, "open"]


def opening(made: E) -> E:
    return made
