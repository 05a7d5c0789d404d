# Made of ../_aio/files.py by scripts/generate_sync.py; change that one.
"""The files in a session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, TypeVar

import httpx

from belljar import _file_calls, _files, _retry
from belljar._sync import _io
from belljar._sync.watch import Watch
from belljar._calls import Call
from belljar._file_calls import ArchiveFormat, FileInfo, FileList, Unpacked
from belljar._files import Progress, Source, StrPath, Upload
from belljar.errors import BelljarError, InvalidRequest, ServerUnavailable

if TYPE_CHECKING:
    from belljar._sync.client import Client

T = TypeVar("T")
Headers = tuple[tuple[str, str], ...]


class Files:
    """The files of a session (`session.files`), as a program inside sees them.

    >>> session.files.write("notes/today.txt", b"hello")
    >>> session.files.read("notes/today.txt")
    b'hello'

    Paths are relative to `/session`, or absolute.
    """

    def __init__(self, client: Client, session_id: str) -> None:
        self._client = client
        self._session_id = session_id

    def list(
        self, path: str = "", *, recursive: bool = False, glob: str | None = None, hidden: bool = True
    ) -> FileList:
        """What is in a directory, or below it. Paths are relative to it.

        With `glob`, what matches: `*.py`, `**/*.py`, `[a-c]?`. Without `hidden`, not what begins with a dot.
        """
        return self._client._do(
            _file_calls.listing(self._session_id, path, recursive=recursive, glob=glob, hidden=hidden)
        )

    def stat(self, path: str) -> FileInfo:
        """What is known of a file or a directory."""
        return self._client._do(_file_calls.stat(self._session_id, path))

    def read(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """The content of a file, or its bytes from `start` to before `end`, as far as there are any."""
        more = _range(start, end)
        if end == start:
            return b""
        call = _file_calls.read(self._session_id, path)
        attempts = self._client._attempts(is_safe=True)
        while True:
            try:
                return self._read(call, more)
            except BelljarError as error:
                self._client._endure(attempts, error)

    def _read(self, call: Call[bytes], more: Headers) -> bytes:
        response = self._client._send(self._client._requests.of(call, accept="*/*", more=more))
        body = self._client._read(response)
        if response.status_code == 416:
            return b""
        if not response.is_success:
            raise _retry.understood(response, body)
        return body

    def chunks(self, path: str, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The content of a file, or its bytes from `start` to before `end`, piece by piece: for what is too large to
        hold. What is lost on the way is not asked for again: the file may have changed."""
        more = _range(start, end)
        if end != start:
            for chunk in self._stream(_file_calls.read(self._session_id, path), path, more):
                yield chunk

    def _stream(self, call: Call[bytes], path: str, more: Headers = ()) -> Iterator[bytes]:
        response = self._client._send(self._client._requests.of(call, accept="*/*", more=more))
        if not response.is_success:
            body = self._client._read(response)
            if response.status_code == 416:
                return
            raise _retry.understood(response, body)
        try:
            for chunk in response.iter_raw(_files.CHUNK):
                yield chunk
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise ServerUnavailable(f"the connection was lost in the middle of `{path}`: {error}") from error
        finally:
            response.close()

    def write(
        self, path: str, source: Source, *, mode: int | None = None, progress: Progress | None = None
    ) -> FileInfo:
        """Writes bytes, a binary file or the file at a local path, over whatever file is there.

        It appears when all of it has come, with permissions `mode` (`0o755`) if that is given. Directories above it
        are made.
        """
        return self._send(_file_calls.write(self._session_id, path, mode), source, progress)

    def append(
        self, path: str, source: Source, *, mode: int | None = None, progress: Progress | None = None
    ) -> FileInfo:
        """Writes behind what is in a file; one that is not there is made, with its directories.

        What has come is there at once. If the connection is lost, it is not sent again: some of it may have arrived.
        """
        return self._send(_file_calls.append(self._session_id, path, mode), source, progress)

    def _send(self, call: Call[T], source: Source, progress: Progress | None) -> T:
        with _files.source(source) as upload:
            is_repeatable = upload.is_repeatable and call.is_safe
            attempts = self._client._attempts(is_repeatable)
            while True:
                upload.rewind()
                try:
                    return self._client._put(call, _body(upload, progress), upload.size)
                except BelljarError as error:
                    if not is_repeatable:
                        raise
                    self._client._endure(attempts, error)

    def mkdir(self, path: str) -> FileInfo:
        """Makes a directory, and those above it. One that is there already is no error."""
        return self._client._do(_file_calls.mkdir(self._session_id, path))

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file or an empty directory; with `recursive`, a directory with all that is in it."""
        self._client._do(_file_calls.delete(self._session_id, path, recursive=recursive))

    def move(self, path: str, to: str) -> FileInfo:
        """Gives a file or a directory another path. A file that is there is replaced."""
        return self._client._do(_file_calls.move(self._session_id, path, to))

    def copy(self, path: str, to: str) -> FileInfo:
        """Copies a file, or a directory with all that is in it. A file that is there is replaced."""
        return self._client._do(_file_calls.copy(self._session_id, path, to))

    def watch(self, path: str = "", *, recursive: bool = False) -> Watch:
        """What changes in a directory, as it happens, until the directory is gone; with `recursive`, also below it.

        >>> with session.files.watch("results") as changes:
        ...     for change in changes:
        ...         print(change.kind, change.path)
        """
        return Watch(self._client, _file_calls.watch(self._session_id, path, recursive=recursive))

    def pack(self, path: str = "", *, format: ArchiveFormat = "tar") -> Iterator[bytes]:
        """A directory as an archive (`tar`, `tar.gz` or `zip`), piece by piece, as it is packed in the sandbox."""
        for chunk in self._stream(_file_calls.pack(self._session_id, path, format), path):
            yield chunk

    def download_archive(self, path: str, to: StrPath | IO[bytes], *, format: ArchiveFormat | None = None) -> int:
        """A directory as an archive, at a local path, where it appears when it is whole, or in a binary file.

        Returns its size. The format is as the path ends, if it is not given.
        """
        name = os.fspath(to) if isinstance(to, (str, os.PathLike)) else None
        size = 0
        with _files.target(to) as file:
            for chunk in self.pack(path, format=_file_calls.format_of(name, format)):
                _io.work(file.write, chunk)
                size += len(chunk)
        return size

    def upload_archive(
        self,
        path: str,
        source: Source,
        *,
        format: ArchiveFormat | None = None,
        progress: Progress | None = None,
    ) -> Unpacked:
        """Unpacks an archive into a directory, which is made. Files with the same names are replaced.

        The format is as the local path ends, if it is not given. Names in it that lead elsewhere are refused.
        """
        name = os.fspath(source) if isinstance(source, (str, os.PathLike)) else None
        form = _file_calls.format_of(name, format)
        return self._send(_file_calls.unpack(self._session_id, path, form), source, progress)


def _range(start: int, end: int | None) -> Headers:
    if start < 0 or (end is not None and end < start):
        raise InvalidRequest(f"there are no bytes from {start} to before {end}")
    if start == 0 and end is None:
        return ()
    return (("range", f"bytes={start}-{'' if end is None else end - 1}"),)


def _body(upload: Upload, progress: Progress | None) -> Iterator[bytes]:
    sent = 0
    while chunk := _io.work(upload.read):
        yield chunk
        sent += len(chunk)
        if progress is not None:
            progress(sent, upload.size)
