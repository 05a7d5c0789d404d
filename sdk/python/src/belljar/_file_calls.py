"""Requests about the files of a session, described once for both clients."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from belljar._calls import Call, _at, _model, _nothing
from belljar.errors import InvalidRequest
from belljar.models import ServerModel

# The directory that relative paths of a session begin in.
HOME = "/session"

ArchiveFormat = Literal["tar", "tar.gz", "zip"]

_ENDINGS: dict[str, ArchiveFormat] = {".tar": "tar", ".tar.gz": "tar.gz", ".tgz": "tar.gz", ".zip": "zip"}


class FileInfo(ServerModel):
    """A file or a directory in a session: `kind` is `file`, `directory`, `link` or `other`.

    `path` is the requested path; in a listing, relative to the listed directory. `mode` has the format of `chmod`.
    """

    path: str
    kind: str
    size: int
    mode: str
    modified: datetime

    @property
    def is_file(self) -> bool:
        return self.kind == "file"

    @property
    def is_directory(self) -> bool:
        return self.kind == "directory"


class FileList(ServerModel):
    """The entries of a directory; at least `more` entries are not listed."""

    files: list[FileInfo]
    more: int = 0


class FileChange(ServerModel):
    """A change in a directory: `kind` is `created`, `modified` or `removed`, and `path` is relative to the watched
    directory. The kind `lost` means that changes were missed: list the directory again."""

    kind: str
    path: str
    directory: bool = False


class Unpacked(ServerModel):
    """The result of unpacking an archive: the number of files, directories and links (`entries`), the bytes of the
    files, and how many pipes, sockets and devices were left out (`skipped`)."""

    path: str
    entries: int
    bytes: int
    skipped: int = 0


_info = _model(FileInfo)
_list = _model(FileList)
_unpacked = _model(Unpacked)
change = _model(FileChange)


def stat(session: str, path: str) -> Call[FileInfo]:
    return Call("GET", _file(session, path), _info, params={"stat": "1"}, is_safe=True)


def listing(session: str, path: str, *, recursive: bool, glob: str | None, hidden: bool) -> Call[FileList]:
    params = {"list": "1", **({"recursive": "1"} if recursive else {}), **({} if hidden else {"hidden": "0"})}
    if glob is not None:
        params["glob"] = glob
    return Call("GET", _file(session, path), _list, params=params, is_safe=True)


def read(session: str, path: str) -> Call[bytes]:
    return Call("GET", _file(session, path), bytes, is_safe=True)


def write(session: str, path: str, mode: int | None) -> Call[FileInfo]:
    return Call("PUT", _file(session, path), _info, params=_mode(mode), is_safe=True)


def append(session: str, path: str, mode: int | None) -> Call[FileInfo]:
    # Not safe to repeat: bytes that have arrived would be appended twice.
    return Call("PUT", _file(session, path), _info, params={"append": "1", **_mode(mode)})


def watch(session: str, path: str, *, recursive: bool) -> Call[None]:
    params = {"watch": "1", **({"recursive": "1"} if recursive else {})}
    return Call("GET", _file(session, path), _nothing, params=params)


def pack(session: str, path: str, form: ArchiveFormat) -> Call[bytes]:
    return Call("GET", _file(session, path), bytes, params={"archive": form}, is_safe=True)


def unpack(session: str, path: str, form: ArchiveFormat) -> Call[Unpacked]:
    return Call("PUT", _file(session, path), _unpacked, params={"archive": form}, is_safe=True)


def mkdir(session: str, path: str) -> Call[FileInfo]:
    return Call("PUT", _file(session, path), _info, params={"mkdir": "1"}, is_safe=True)


def delete(session: str, path: str, *, recursive: bool) -> Call[None]:
    return Call("DELETE", _file(session, path), _nothing, params={"recursive": "1"} if recursive else None)


def move(session: str, path: str, to: str) -> Call[FileInfo]:
    return Call("POST", _file(session, path), _info, body={"to": to})


def copy(session: str, path: str, to: str) -> Call[FileInfo]:
    return Call("POST", _file(session, path), _info, body={"to": to, "copy": True}, is_safe=True)


def format_of(name: str | None, given: ArchiveFormat | None) -> ArchiveFormat:
    """The format of an archive: the given one, or the one that its file name ends with."""
    if given is not None:
        return given
    for ending, form in _ENDINGS.items():
        if name is not None and name.lower().endswith(ending):
            return form
    raise InvalidRequest("the file name does not show the archive's format; give `format`: tar, tar.gz or zip")


def _mode(mode: int | None) -> dict[str, str]:
    if mode is not None and not 0 <= mode <= 0o777:
        raise InvalidRequest(f"`mode` is {mode:#o}: expected 0 to 0o777")
    return {} if mode is None else {"mode": f"{mode:o}"}


def _file(session: str, path: str) -> str:
    # One segment of the URL, so that no proxy normalizes `..` or `//` in it.
    return _at(session, "files", path or HOME)
