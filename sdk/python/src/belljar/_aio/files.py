"""The files in a session."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import httpx

from belljar import _file_calls, _files, _retry
from belljar._aio import _io
from belljar._calls import Call
from belljar._file_calls import FileInfo, FileList
from belljar._files import Progress, Source, Upload
from belljar.errors import BelljarError, InvalidRequest, ServerUnavailable

if TYPE_CHECKING:
    from belljar._aio.client import AsyncClient


class AsyncFiles:
    """The files of a session (`session.files`), as a program inside sees them.

    >>> await session.files.write("notes/today.txt", b"hello")
    >>> await session.files.read("notes/today.txt")
    b'hello'

    Paths are relative to `/session`, or absolute.
    """

    def __init__(self, client: AsyncClient, session_id: str) -> None:
        self._client = client
        self._session_id = session_id

    async def list(self, path: str = "", *, recursive: bool = False) -> FileList:
        """What is in a directory, or below it. Paths are relative to it."""
        return await self._client._do(_file_calls.listing(self._session_id, path, recursive=recursive))

    async def stat(self, path: str) -> FileInfo:
        """What is known of a file or a directory."""
        return await self._client._do(_file_calls.stat(self._session_id, path))

    async def read(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """The content of a file, or its bytes from `start` to before `end`, as far as there are any."""
        if start < 0 or (end is not None and end < start):
            raise InvalidRequest(f"there are no bytes from {start} to before {end}")
        if end == start:
            return b""
        call = _file_calls.read(self._session_id, path)
        attempts = self._client._attempts(is_safe=True)
        while True:
            try:
                return await self._read(call, start, end)
            except BelljarError as error:
                await self._client._endure(attempts, error)

    async def _read(self, call: Call[bytes], start: int, end: int | None) -> bytes:
        is_part = start > 0 or end is not None
        more = (("range", f"bytes={start}-{'' if end is None else end - 1}"),) if is_part else ()
        response = await self._client._send(self._client._requests.of(call, accept="*/*", more=more))
        body = await self._client._read(response)
        if response.status_code == 416:
            return b""
        if not response.is_success:
            raise _retry.understood(response, body)
        return body

    async def chunks(self, path: str) -> AsyncIterator[bytes]:
        """The content of a file piece by piece, for what is too large to hold. What is lost on the way is not asked for
        again: the file may have changed."""
        call = _file_calls.read(self._session_id, path)
        response = await self._client._send(self._client._requests.of(call, accept="*/*"))
        if not response.is_success:
            raise _retry.understood(response, await self._client._read(response))
        try:
            async for chunk in response.aiter_raw(_files.CHUNK):
                yield chunk
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise ServerUnavailable(f"the connection was lost in the middle of `{path}`: {error}") from error
        finally:
            await response.aclose()

    async def write(self, path: str, source: Source, *, progress: Progress | None = None) -> FileInfo:
        """Writes bytes, a binary file or the file at a local path, over whatever file is there.

        It appears when all of it has come. Directories above it are made.
        """
        call = _file_calls.write(self._session_id, path)
        with _files.source(source) as upload:
            attempts = self._client._attempts(upload.is_repeatable)
            while True:
                upload.rewind()
                try:
                    return await self._client._put(call, _body(upload, progress), upload.size)
                except BelljarError as error:
                    if not upload.is_repeatable:
                        raise
                    await self._client._endure(attempts, error)

    async def mkdir(self, path: str) -> FileInfo:
        """Makes a directory, and those above it. One that is there already is no error."""
        return await self._client._do(_file_calls.mkdir(self._session_id, path))

    async def delete(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file or an empty directory; with `recursive`, a directory with all that is in it."""
        await self._client._do(_file_calls.delete(self._session_id, path, recursive=recursive))

    async def move(self, path: str, to: str) -> FileInfo:
        """Gives a file or a directory another path. A file that is there is replaced."""
        return await self._client._do(_file_calls.move(self._session_id, path, to))


async def _body(upload: Upload, progress: Progress | None) -> AsyncIterator[bytes]:
    sent = 0
    while chunk := await _io.work(upload.read):
        yield chunk
        sent += len(chunk)
        if progress is not None:
            progress(sent, upload.size)
