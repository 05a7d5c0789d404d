"""Calls about the files of a session, described once for both clients."""

from __future__ import annotations

from datetime import datetime

from belljar._calls import Call, _at, _model, _nothing
from belljar.models import _Told

# What a session's paths are relative to.
HOME = "/session"


class FileInfo(_Told):
    """A file or a directory in a session: `kind` is `file`, `directory`, `link` or `other`.

    `path` is as it was asked for; in a listing, relative to what was listed. `mode` is what `chmod`
    takes.
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


class FileList(_Told):
    """What is in a directory; `more` counts, at least, what is not listed."""

    files: list[FileInfo]
    more: int = 0


_info = _model(FileInfo)
_list = _model(FileList)


def stat(session: str, path: str) -> Call[FileInfo]:
    return Call("GET", _file(session, path), _info, params={"stat": "1"}, is_safe=True)


def listing(session: str, path: str, *, recursive: bool) -> Call[FileList]:
    params = {"list": "1", **({"recursive": "1"} if recursive else {})}
    return Call("GET", _file(session, path), _list, params=params, is_safe=True)


def read(session: str, path: str) -> Call[bytes]:
    return Call("GET", _file(session, path), bytes, is_safe=True)


def write(session: str, path: str) -> Call[FileInfo]:
    return Call("PUT", _file(session, path), _info, is_safe=True)


def mkdir(session: str, path: str) -> Call[FileInfo]:
    return Call("PUT", _file(session, path), _info, params={"mkdir": "1"}, is_safe=True)


def delete(session: str, path: str, *, recursive: bool) -> Call[None]:
    return Call("DELETE", _file(session, path), _nothing, params={"recursive": "1"} if recursive else None)


def move(session: str, path: str, to: str) -> Call[FileInfo]:
    return Call("POST", _file(session, path), _info, body={"to": to})


def _file(session: str, path: str) -> str:
    # One part of the URL, whatever is in it: nobody on the way then tidies up `..` or `//`.
    return _at(session, "files", path or HOME)
