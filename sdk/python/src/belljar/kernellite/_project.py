"""A project directory on this machine: lists its files, and writes to its directory `data` only."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO

from belljar._files import StrPath
from belljar.errors import InvalidRequest

DATA = "data"

# Large directories that code does not need.
_NOT_COPIED = {".git", ".hg", ".svn", ".sandbox", ".venv", "venv", "node_modules", "__pycache__"}

# Names of files that are usually secret. Code in the sandbox does not get them.
_SECRET_DIRECTORIES = {".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".secrets", "secrets"}
_SECRET_FILES = (
    ".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".npmrc", ".yarnrc.yml", ".pypirc", ".pgpass", ".my.cnf",
    ".git-credentials", ".htpasswd", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "id_rsa*",
    "id_dsa*", "id_ecdsa*", "id_ed25519*", "credentials", "credentials.*", "secrets.*", "client_secret*.json",
    "service-account*.json", "service_account*.json",
)  # fmt: skip
# Templates and public keys, which are not secret.
_NOT_SECRET = ("*.example", "*.sample", "*.template", "*.dist", "*.pub")

_OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


@dataclass(frozen=True)
class HostFile:
    """A regular file; `path` is relative to the project."""

    path: str
    size: int
    modified_ns: int


class Project:
    def __init__(self, root: StrPath, records: StrPath | None) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise InvalidRequest(f"`{root}` is not a directory")
        #: The directory for records of what was copied. It is not in `data`, so that code cannot write it.
        self.records = Path(records) if records is not None else self.root / ".sandbox"

    @property
    def key(self) -> str:
        """The key of the project's session. It includes the host name: other machines may have the same path."""
        name = f"{socket.gethostname()}\0{self.root}"
        return f"kernellite:{hashlib.sha256(os.fsencode(name)).hexdigest()[:32]}"

    def files(self, below: str = "") -> Iterator[HostFile]:
        """The files of the project, `data` first. Links are not followed, except `data` itself."""
        begin = self.root / below
        if not begin.is_dir():
            return
        pending = [begin]
        while pending:
            directory = pending.pop()
            try:
                found = sorted(os.scandir(directory), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in found:
                if entry.is_file(follow_symlinks=False):
                    info = entry.stat(follow_symlinks=False)
                    path = os.path.relpath(entry.path, self.root)
                    yield HostFile(path, info.st_size, info.st_mtime_ns)
                elif entry.name not in _NOT_COPIED and entry.is_dir(follow_symlinks=False):
                    pending.append(Path(entry.path))
            if directory == self.root and (self.root / DATA).is_dir():
                pending = [path for path in pending if path.name != DATA] + [self.root / DATA]

    @contextmanager
    def reading(self, file: HostFile) -> Iterator[IO[bytes]]:
        """Opens a listed file. Raises if it has become a link or a pipe since."""
        descriptor = os.open(self.root / file.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as opened:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(f"`{file.path}` is no longer a regular file")
            yield opened

    def write(self, parts: list[str], chunks: Iterable[bytes]) -> HostFile:
        """Writes a file in `data`, which appears when it is complete.

        Each directory is opened relative to its parent, and never through a link: so no path can leave `data`.
        """
        if not parts or not all(map(is_name, parts)):
            raise InvalidRequest(f"`{'/'.join(parts)}` is not the name of a file below `{DATA}`")
        directory = self._open_data()
        try:
            for part in parts[:-1]:
                inner = _enter(directory, part)
                os.close(directory)
                directory = inner
            info = _write_in(directory, parts[-1], chunks)
        finally:
            os.close(directory)
        return HostFile("/".join([DATA, *parts]), info.st_size, info.st_mtime_ns)

    def _open_data(self) -> int:
        (self.root / DATA).mkdir(exist_ok=True)
        return os.open(self.root / DATA, _OPEN_DIRECTORY)


def is_secret(path: str) -> bool:
    """Whether a file is usually secret, by its path in the project."""
    *directories, name = path.lower().split("/")
    if any(directory in _SECRET_DIRECTORIES for directory in directories):
        return True
    if any(fnmatchcase(name, pattern) for pattern in _NOT_SECRET):
        return False
    return any(fnmatchcase(name, pattern) for pattern in _SECRET_FILES)


def is_name(part: str) -> bool:
    """Whether this is a valid name of a file, not a path."""
    return part not in ("", ".", "..") and "/" not in part and "\0" not in part


def _enter(directory: int, name: str) -> int:
    with suppress(FileExistsError):
        os.mkdir(name, dir_fd=directory)
    return os.open(name, _OPEN_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)


def _write_in(directory: int, name: str, chunks: Iterable[bytes]) -> os.stat_result:
    fresh = f".{secrets.token_hex(8)}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(fresh, flags, 0o666, dir_fd=directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(descriptor)
            info = os.fstat(descriptor)
        os.replace(fresh, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(fresh, dir_fd=directory)
        raise
    return info
