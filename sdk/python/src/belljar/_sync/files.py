# Generated from ../_aio/files.py by scripts/generate_sync.py; change that file.
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
        """Lists a directory; with `recursive`, also everything below it. Paths are relative to the directory.

        `glob` selects by pattern: `*.py`, `**/*.py`, `[a-c]?`. `hidden=False` leaves out names that begin with a dot.
        """
        return self._client._do(
            _file_calls.listing(self._session_id, path, recursive=recursive, glob=glob, hidden=hidden)
        )

    def stat(self, path: str) -> FileInfo:
        """Kind, size, mode and time of a file or directory."""
        return self._client._do(_file_calls.stat(self._session_id, path))

    def read(self, path: str, *, start: int = 0, end: int | None = None) -> bytes:
        """The content of a file, or its bytes from `start` to before `end`, as far as they exist."""
        more = _range(start, end)
        if end == start:
            return b""
        call = _file_calls.read(self._session_id, path)
        attempts = self._client._attempts(is_safe=True)
        while True:
            try:
                return self._read(call, more)
            except BelljarError as error:
                self._client._wait_before_retry(attempts, error)

    def _read(self, call: Call[bytes], more: Headers) -> bytes:
        response = self._client._send(self._client._requests.of(call, accept="*/*", more=more))
        body = self._client._read(response)
        if response.status_code == 416:
            return b""
        if not response.is_success:
            raise _retry.refusal_of(response, body)
        return body

    def chunks(self, path: str, *, start: int = 0, end: int | None = None) -> Iterator[bytes]:
        """The same as `read`, in pieces, for files that do not fit into memory. A lost connection raises an error and
        is not resumed, because the file may have changed."""
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
            raise _retry.refusal_of(response, body)
        try:
            for chunk in response.iter_raw(_files.CHUNK):
                yield chunk
        except (httpx.HTTPError, httpx.StreamError) as error:
            raise ServerUnavailable(f"the connection was lost while reading `{path}`: {error}") from error
        finally:
            response.close()

    def write(
        self, path: str, source: Source, *, mode: int | None = None, progress: Progress | None = None
    ) -> FileInfo:
        """Writes bytes, a binary file or the file at a local path, and replaces a file that exists.

        The file appears when it is complete, with the permissions `mode` (such as `0o755`) if given. Missing parent
        directories are created.
        """
        return self._send(_file_calls.write(self._session_id, path, mode), source, progress)

    def append(
        self, path: str, source: Source, *, mode: int | None = None, progress: Progress | None = None
    ) -> FileInfo:
        """Appends to a file. A missing file is created, with its parent directories.

        Bytes are visible as soon as they arrive. After a lost connection nothing is sent again, because a part may have
        arrived.
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
                    self._client._wait_before_retry(attempts, error)

    def mkdir(self, path: str) -> FileInfo:
        """Creates a directory and its missing parents. An existing directory is no error."""
        return self._client._do(_file_calls.mkdir(self._session_id, path))

    def delete(self, path: str, *, recursive: bool = False) -> None:
        """Removes a file or an empty directory; with `recursive`, a directory and everything in it."""
        self._client._do(_file_calls.delete(self._session_id, path, recursive=recursive))

    def move(self, path: str, to: str) -> FileInfo:
        """Moves a file or a directory. A file at the new path is replaced."""
        return self._client._do(_file_calls.move(self._session_id, path, to))

    def copy(self, path: str, to: str) -> FileInfo:
        """Copies a file, or a directory with everything in it. A file at the new path is replaced."""
        return self._client._do(_file_calls.copy(self._session_id, path, to))

    def watch(self, path: str = "", *, recursive: bool = False) -> Watch:
        """Watches a directory for changes until it is removed; with `recursive`, also everything below it.

        >>> with session.files.watch("results") as changes:
        ...     for change in changes:
        ...         print(change.kind, change.path)
        """
        return Watch(self._client, _file_calls.watch(self._session_id, path, recursive=recursive))

    def pack(self, path: str = "", *, format: ArchiveFormat = "tar") -> Iterator[bytes]:
        """A directory as an archive (`tar`, `tar.gz` or `zip`), in pieces, while the sandbox packs it."""
        for chunk in self._stream(_file_calls.pack(self._session_id, path, format), path):
            yield chunk

    def download_archive(self, path: str, to: StrPath | IO[bytes], *, format: ArchiveFormat | None = None) -> int:
        """Saves a directory as an archive, at a local path, where it appears when it is complete, or in a binary file.

        Returns the archive's size. By default the ending of the path decides the format.
        """
        name = os.fspath(to) if isinstance(to, (str, os.PathLike)) else None
        size = 0
        with _files.target(to) as file:
            for chunk in self.pack(path, format=_file_calls.format_of(name, format)):
                _io.in_thread(file.write, chunk)
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
        """Unpacks an archive into a directory, which is created. Files with the same names are replaced.

        By default the ending of the local path decides the format. Names that point outside the directory are refused.
        """
        name = os.fspath(source) if isinstance(source, (str, os.PathLike)) else None
        form = _file_calls.format_of(name, format)
        return self._send(_file_calls.unpack(self._session_id, path, form), source, progress)


def _range(start: int, end: int | None) -> Headers:
    if start < 0 or (end is not None and end < start):
        raise InvalidRequest(f"`start` is {start} and `end` is {end}: expected 0 <= start <= end")
    if start == 0 and end is None:
        return ()
    return (("range", f"bytes={start}-{'' if end is None else end - 1}"),)


def _body(upload: Upload, progress: Progress | None) -> Iterator[bytes]:
    sent = 0
    while chunk := _io.in_thread(upload.read):
        yield chunk
        sent += len(chunk)
        if progress is not None:
            progress(sent, upload.size)
