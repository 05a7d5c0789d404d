"""What differs between the two halves, for this one: it just waits."""

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

#: Called for every piece of output.
Callback = Callable[[T], None]

sleep = time.sleep


def tell(callback: Callback[T], value: T) -> None:
    callback(value)


def work(function: Callable[..., T], *args: Any) -> T:
    return function(*args)


def is_cancellation(error: BaseException) -> bool:
    return isinstance(error, KeyboardInterrupt)


@contextmanager
def last_words() -> Iterator[None]:
    """A moment in which something can still be said, though we were interrupted."""
    with suppress(BelljarError):
        yield


class Line:
    """Connections to a server: straight, or as the environment wants it, through a proxy."""

    def __init__(self, *, straight: dict[str, Any] | None) -> None:
        self._socket: str | None = straight.get("uds") if straight is not None else None
        self._transport = httpx.HTTPTransport(**straight) if straight is not None else None
        self._client = httpx.Client(limits=LIMITS) if straight is None else None

    def send(self, request: httpx.Request) -> httpx.Response:
        """The answer, with its body still to be read."""
        if self._transport is not None:
            if self._socket is not None and not local.may_talk_to(self._socket):
                raise httpx.ConnectError(f"there is no `{self._socket}`", request=request)
            response = self._transport.handle_request(request)
            response.request = request
            return response
        assert self._client is not None  # as it is one or the other
        return self._client.send(request, stream=True)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if self._client is not None:
            self._client.close()


class Pool:
    """Connections, shared by all threads. After a fork they are the parent's, and we make our own."""

    def __init__(self, make: Callable[[], Line]) -> None:
        self._make = make
        self._found: tuple[int, Line] | None = None
        self._lock = threading.Lock()
        self._lock_pid = os.getpid()

    def _own_lock(self) -> threading.Lock:
        if self._lock_pid != os.getpid():
            # A thread of the parent may have held it, and is not here to let go.
            self._lock, self._lock_pid = threading.Lock(), os.getpid()
        return self._lock

    def get(self) -> Line:
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

#: What is opened is there at once.
Opening = Annotated[E, "open"]


def opening(made: E) -> E:
    return made
