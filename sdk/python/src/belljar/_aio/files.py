"""The files in a session."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import IO, TYPE_CHECKING, TypeVar

import httpx

from belljar import _file_calls, _files, _retry
from belljar._aio import _io
from belljar._aio.watch import AsyncWatch
from belljar._calls import Call
from belljar._file_calls import ArchiveFormat, FileInfo, FileList, Unpacked
from belljar._files import Progress, Source, StrPath, Upload
from belljar.errors import BelljarError, InvalidRequest, ServerUnavailable

if TYPE_CHECKING:
    from belljar._aio.client import AsyncClient

T = TypeVar("T")
Headers = tuple[tuple[str, str], ...]


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

    async def list(
        self, path: str = "", *, recursive: bool = False, glob: str | None = None, hidden: bool = True
    ) -> FileList:
        """Lists a directory; with `recursive`, also everything below it. Paths are relative to the directory.

        `glob` selects by pattern: `*.py`, `**/*.py`, `[a-c]?`. `hidden=False` leaves out names that begin with a dot.
        """
        return await self._client._do(
            _file_calls.listing(self._session_id, path, recursive=recursive, glob=glob, hidden=hidden)
        )

    async def stat(self, path: str) -> FileInfo:
        """Kind, size, mode and time of a file or directory."""
        return await self._client._do(_file_calls.stat(self._session_id, path))

    async def read(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """The content of a file, or its bytes from `start` to before `end`, as far as they exist."""
        more = _range(start, end)
        if end == start:
            return b""
        call = _file_calls.read(self._session_id, path)
        attempts = self._client._attempts(is_safe=True)
        while True:
            try:
                return await self._read(call, more)
            except BelljarError as error:
                await self._client._wait_before_retry(attempts, error)

    async def _read(self, call: Call[bytes], more: Headers) -> bytes:
        response = await self._client._send(self._client._requests.of(call, accept="*/*", more=more))
        body = await self._client._read(response)
        if response.status_code == 416:
            return b""
        if not response.is_success:
            raise _retry.refusal_of(response, body)
        return body

    async def chunks(self, path: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """The same as `read`, in pieces, for files that do not fit into memory. A lost connection raises an error and
        is not resumed, because the file may have changed."""
        more = _range(start, end)
        if end != start:
            async for chunk in self._stream(_file_calls.read(self._session_id, path), path, more):
                yield chunk

    async def _stream(self, call: Call[bytes], path: str, more: Headers = ()) -> AsyncIterator[bytes]:
        response = await self._client._send(self._client._requests.of(call, accept="*/*", more=more))
        if not response.is_success:
            body = await self._client._read(response)
            if response.status_code == 416:
                return
            raise _retry.refusal_of(response, body)
        try:
            async for chunk in response.aiter_raw(_files.CHUNK):
                yield chunk
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise ServerUnavailable(f"the connection was lost while reading `{path}`: {error}") from error
        finally:
            await response.aclose()

    async def write(
        self, path: str, source: Source, *, mode: int | None = None, progress: Progress | None = None
    ) -> FileInfo:
        """Writes bytes, a binary file or the file at a local path, and replaces a file that exists.

        The file appears when it is complete, with the permissions `mode` (such as `0o755`) if given. Missing parent
        directories are created.
        """
        return await self._send(_file_calls.write(self._session_id, path, mode), source, progress)

    async def append(
        self, path: str, source: Source, *, mode: int | None = None, progress: Progress | None = None
    ) -> FileInfo:
        """Appends to a file. A missing file is created, with its parent directories.

        Bytes are visible as soon as they arrive. After a lost connection nothing is sent again, because a part may have
        arrived.
        """
        return await self._send(_file_calls.append(self._session_id, path, mode), source, progress)

    async def _send(self, call: Call[T], source: Source, progress: Progress | None) -> T:
        with _files.source(source) as upload:
            is_repeatable = upload.is_repeatable and call.is_safe
            attempts = self._client._attempts(is_repeatable)
            while True:
                upload.rewind()
                try:
                    return await self._client._put(call, _body(upload, progress), upload.size)
                except BelljarError as error:
                    if not is_repeatable:
                        raise
                    await self._client._wait_before_retry(attempts, error)

    async def mkdir(self, path: str) -> FileInfo:
        """Creates a directory and its missing parents. An existing directory is no error."""
        return await self._client._do(_file_calls.mkdir(self._session_id, path))

    async def delete(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file or an empty directory; with `recursive`, a directory and everything in it."""
        await self._client._do(_file_calls.delete(self._session_id, path, recursive=recursive))

    async def move(self, path: str, to: str) -> FileInfo:
        """Moves a file or a directory. A file at the new path is replaced."""
        return await self._client._do(_file_calls.move(self._session_id, path, to))

    async def copy(self, path: str, to: str) -> FileInfo:
        """Copies a file, or a directory with everything in it. A file at the new path is replaced."""
        return await self._client._do(_file_calls.copy(self._session_id, path, to))

    def watch(self, path: str = "", *, recursive: bool = False) -> AsyncWatch:
        """Watches a directory for changes until it is removed; with `recursive`, also everything below it.

        >>> async with session.files.watch("results") as changes:
        ...     async for change in changes:
        ...         print(change.kind, change.path)
        """
        return AsyncWatch(self._client, _file_calls.watch(self._session_id, path, recursive=recursive))

    async def pack(self, path: str = "", *, format: ArchiveFormat = "tar") -> AsyncIterator[bytes]:
        """A directory as an archive (`tar`, `tar.gz` or `zip`), in pieces, while the sandbox packs it."""
        async for chunk in self._stream(_file_calls.pack(self._session_id, path, format), path):
            yield chunk

    async def download_archive(self, path: str, to: StrPath | IO[bytes], *, format: ArchiveFormat | None = None) -> int:
        """Saves a directory as an archive, at a local path, where it appears when it is complete, or in a binary file.

        Returns the archive's size. By default the ending of the path decides the format.
        """
        name = os.fspath(to) if isinstance(to, (str, os.PathLike)) else None
        size = 0
        with _files.target(to) as file:
            async for chunk in self.pack(path, format=_file_calls.format_of(name, format)):
                await _io.in_thread(file.write, chunk)
                size += len(chunk)
        return size

    async def upload_archive(
        self,
        path: str,
        source: Source,
        *,
        format: ArchiveFormat | None = None,
        progress: Progress | None = None,
    ) -> Unpacked:
        """Unpacks an archive into a directory, which is created. Files with the same names are replaced.

        By default the ending of the local path decides the format. Names that point outside the directory are refused.
        """
        name = os.fspath(source) if isinstance(source, (str, os.PathLike)) else None
        form = _file_calls.format_of(name, format)
        return await self._send(_file_calls.unpack(self._session_id, path, form), source, progress)


def _range(start: int, end: int | None) -> Headers:
    if start < 0 or (end is not None and end < start):
        raise InvalidRequest(f"`start` is {start} and `end` is {end}: expected 0 <= start <= end")
    if start == 0 and end is None:
        return ()
    return (("range", f"bytes={start}-{'' if end is None else end - 1}"),)


async def _body(upload: Upload, progress: Progress | None) -> AsyncIterator[bytes]:
    sent = 0
    while chunk := await _io.in_thread(upload.read):
        yield chunk
        sent += len(chunk)
        if progress is not None:
            progress(sent, upload.size)
