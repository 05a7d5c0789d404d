"""Local files of uploads and downloads."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

from belljar.errors import IntegrityError, InvalidRequest
from belljar.models import Artifact

#: Called with the number of transferred bytes, and the total if it is known.
Progress = Callable[[int, "int | None"], None]
StrPath = str | os.PathLike[str]
Source = StrPath | bytes | bytearray | memoryview | IO[bytes]

CHUNK = 1 << 20


class _Hash(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def hexdigest(self) -> str: ...


@dataclass
class Upload:
    """Content to upload. If `is_repeatable`, it can be read again from its beginning."""

    file: IO[bytes]
    begin: int
    size: int | None
    name: str | None

    @property
    def is_repeatable(self) -> bool:
        return self.size is not None

    def rewind(self) -> None:
        if self.is_repeatable:
            self.file.seek(self.begin)

    def read(self) -> bytes:
        # A file that grows meanwhile is read only up to its announced size.
        left = CHUNK if self.size is None else self.begin + self.size - self.file.tell()
        return self.file.read(min(CHUNK, max(left, 0)))

    def sha256(self) -> str | None:
        if not self.is_repeatable:
            return None
        self.rewind()
        digest = hashlib.sha256()
        while chunk := self.read():
            digest.update(chunk)
        self.rewind()
        return digest.hexdigest()


@contextmanager
def source(given: Source) -> Iterator[Upload]:
    """Opens the content to upload."""
    if isinstance(given, (bytes, bytearray, memoryview)):
        import io

        view = memoryview(given).cast("B")
        yield Upload(io.BytesIO(view), 0, len(view), None)
    elif isinstance(given, (str, os.PathLike)):
        path = Path(given)
        with open(path, "rb") as file:
            yield Upload(file, 0, os.fstat(file.fileno()).st_size, path.name)
    elif hasattr(given, "read"):
        yield _of_file(given)
    else:
        raise InvalidRequest(f"cannot send a {type(given).__name__}; expected a path, bytes or a binary file")


def _of_file(file: IO[bytes]) -> Upload:
    name = getattr(file, "name", None)
    name = os.path.basename(name) if isinstance(name, str) else None
    try:
        begin = file.tell()
        size = file.seek(0, os.SEEK_END) - begin
        file.seek(begin)
    except (OSError, AttributeError, ValueError):
        return Upload(file, 0, None, name)
    return Upload(file, begin, size, name)


@contextmanager
def target(given: StrPath | IO[bytes]) -> Iterator[IO[bytes]]:
    """Opens the file to write to: the given one, or one at a path, where it appears when it is complete."""
    if not isinstance(given, (str, os.PathLike)):
        yield given
        return
    path = Path(given)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        with open(part, "xb") as file:
            yield file
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


class Arriving:
    """A download to a path. It is written to a file beside the path, which is renamed when it is complete and correct.

    The next download of the same content continues an incomplete file.
    """

    def __init__(self, artifact: Artifact, to: StrPath) -> None:
        path = Path(to)
        if path.is_dir():
            path = path / _plain_name(artifact)
        self.path = path
        self._artifact = artifact
        self._part = path.with_name(f"{path.name}.{(artifact.sha256 or artifact.id or '')[:16]}.part")
        self._file: IO[bytes] | None = None
        self._hash: _Hash = hashlib.sha256()
        self.size = 0

    def open(self, resume: bool) -> None:
        """Opens the file, and reads what an earlier download left."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | (0 if resume else os.O_TRUNC)
        self._file = os.fdopen(os.open(self._part, flags, 0o666), "r+b")
        while chunk := self._file.read(CHUNK):
            self._hash.update(chunk)
            self.size += len(chunk)
        if self.size > self._artifact.size:
            self._restart()

    def write(self, chunk: bytes) -> None:
        assert self._file is not None  # `open` sets it
        self._file.write(chunk)
        self._hash.update(chunk)
        self.size += len(chunk)

    def finish(self) -> Path:
        assert self._file is not None  # `open` sets it
        self._file.close()
        if self._artifact.sha256 not in (None, self._hash.hexdigest()):
            self._part.unlink(missing_ok=True)
            raise damaged(self._artifact)
        os.replace(self._part, self.path)
        return self.path

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _restart(self) -> None:
        assert self._file is not None  # `open` sets it
        self._file.seek(0)
        self._file.truncate()
        self._hash, self.size = hashlib.sha256(), 0


def check(artifact: Artifact, content: bytes) -> bytes:
    """The content; raises if it does not match its hash."""
    if artifact.sha256 not in (None, hashlib.sha256(content).hexdigest()):
        raise damaged(artifact)
    return content


def damaged(artifact: Artifact) -> IntegrityError:
    return IntegrityError(f"the content of artifact {artifact.id} (`{artifact.name}`) does not match its hash")


def _plain_name(artifact: Artifact) -> str:
    """A safe name for a local file: code in a sandbox chose the artifact's name."""
    name = PurePosixPath(artifact.name.replace("\0", "_")).name
    return name if name not in ("", ".", "..") else (artifact.id or "artifact")


def link_path(url: str) -> str:
    """The path of a link, for the address of the server that we use: its public address may differ."""
    at = url.find("/artifacts/")
    return url[at:] if at >= 0 else url


def content_range(headers: Any) -> int | None:
    """The first byte that a partial response begins with."""
    value = headers.get("content-range", "")
    if not value.startswith("bytes "):
        return None
    begin = value[len("bytes ") :].partition("-")[0]
    return int(begin) if begin.isdigit() else None
