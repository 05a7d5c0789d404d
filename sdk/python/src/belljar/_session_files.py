"""Files of a session for the adapters in this package: written, read and listed by path.

Only what they need; the calls are those of `/v1/sessions/{id}/files/{path}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Callable, TypeVar
from urllib.parse import quote

import httpx

from belljar._aio.client import AsyncClient
from belljar._calls import Call
from belljar._files import CHUNK
from belljar._retry import understood
from belljar._sync.client import Client
from belljar.errors import BelljarError, ProtocolError, ServerUnavailable

T = TypeVar("T")

# How long the server may be silent: large files are written inside before it answers.
_TIMEOUT = 120.0


@dataclass(frozen=True)
class Entry:
    """Something in a directory; `path` is relative to the directory that was listed."""

    path: str
    kind: str
    size: int
    modified: str


@dataclass(frozen=True)
class Listing:
    entries: list[Entry]
    #: How many there are that the server does not tell.
    more: int


def write_call(session_id: str, path: str) -> Call[Entry]:
    return Call("PUT", _at(session_id, path), _entry, is_safe=True, timeout=_TIMEOUT)


def read_call(session_id: str, path: str) -> Call[bytes]:
    return Call("GET", _at(session_id, path), lambda body: body, is_safe=True, timeout=_TIMEOUT)


def write(client: Client, session_id: str, path: str, content: bytes) -> Entry:
    """Writes a file, which appears when all of it has come; its directories are made."""
    call = write_call(session_id, path)
    attempts = client._attempts(is_safe=True)
    while True:
        try:
            return client._put(call, content, len(content))
        except BelljarError as error:
            client._endure(attempts, error)


async def awrite(client: AsyncClient, session_id: str, path: str, content: bytes) -> Entry:
    """The same as `write`, to be awaited."""
    call = write_call(session_id, path)
    attempts = client._attempts(is_safe=True)
    while True:
        try:
            return await client._put(call, content, len(content))
        except BelljarError as error:
            await client._endure(attempts, error)


def write_from(client: Client, session_id: str, path: str, file: IO[bytes], size: int) -> Entry:
    """Writes a file of `size` bytes piece by piece, for what is too large to hold."""

    def pieces() -> Iterator[bytes]:
        left = size
        while left > 0 and (chunk := file.read(min(CHUNK, left))):
            left -= len(chunk)
            yield chunk

    call = write_call(session_id, path)
    attempts = client._attempts(is_safe=True)
    while True:
        file.seek(0)
        try:
            return client._put(call, pieces(), size)
        except BelljarError as error:
            client._endure(attempts, error)


def chunks(client: Client, session_id: str, path: str) -> Iterator[bytes]:
    """The content of a file piece by piece."""
    response = client._send(client._requests.of(read_call(session_id, path), accept="*/*"))
    if not response.is_success:
        raise understood(response, client._read(response))
    try:
        yield from response.iter_raw(CHUNK)
    except (httpx.HTTPError, httpx.StreamError) as error:
        raise ServerUnavailable(f"the connection was lost in the middle of `{path}`: {error}") from error
    finally:
        response.close()


def kind(client: Client, session_id: str, path: str) -> str:
    """What is there, itself: `file`, `directory`, `link` or `other`."""
    call = Call("GET", _at(session_id, path), _entry, params={"stat": "1"}, is_safe=True, timeout=_TIMEOUT)
    return client._do(call).kind


def listing(client: Client, session_id: str, path: str) -> Listing:
    """Everything below a directory. Links are told, and not followed."""
    params = {"list": "1", "recursive": "1"}
    return client._do(Call("GET", _at(session_id, path), _listing, params=params, is_safe=True, timeout=_TIMEOUT))


def _entry(body: bytes) -> Entry:
    return _understood(body, _entry_of)


def _listing(body: bytes) -> Listing:
    return _understood(body, lambda told: Listing([_entry_of(file) for file in told["files"]], int(told["more"])))


def _entry_of(told: Any) -> Entry:
    return Entry(str(told["path"]), str(told["kind"]), int(told["size"]), str(told["modified"]))


def _understood(body: bytes, understand: Callable[[Any], T]) -> T:
    try:
        return understand(json.loads(body))
    except (KeyError, TypeError, ValueError) as error:
        raise ProtocolError("the server told files in an unknown way") from error


def _at(session_id: str, path: str) -> str:
    # As one part, so that nobody on the way takes `..` or two slashes for anything but a name.
    return f"/v1/sessions/{quote(session_id, safe='')}/files/{quote(path, safe='')}"
