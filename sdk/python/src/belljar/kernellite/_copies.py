"""Copies of a project's files in a session, and which side has changed which file.

```text
   project/data/x ──── changed here since it was recorded ────▶ /workspace/data/x
                  ◀─── changed inside since it was recorded ───
```

Sizes and times of both files at the last copy are recorded beside the project. One program at a time reads and writes
these records; code may run meanwhile.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from belljar import local
from belljar._file_calls import FileInfo
from belljar._sync.client import Client
from belljar._sync.files import Files
from belljar.errors import BelljarError, NoSpace, Refused
from belljar.kernellite._project import DATA, HostFile, Project, is_name, is_secret

# Limits for what is copied in and written back; with storage TMPFS all of it is memory.
MAX_FILES = 2000
MAX_FILE = 256 << 20
MAX_TOTAL = 512 << 20
# How many of the files that were left out are named; the others are counted.
_MAX_NAMED = 20

_WORKSPACE = "/workspace"


class Copies:
    """The copies in one session. Holds a lock within its `with` block, which must be short."""

    def __init__(self, client: Client, session_id: str, project: Project) -> None:
        self._files = Files(client, session_id)
        self._session_id = session_id
        self._project = project
        self._record_file = project.records / "kernellite.json"
        self._lock: AbstractContextManager[None] | None = None
        #: By path: [size here, time here, size inside, time inside]. The last two are None for files that were left
        #: out, so that there is one warning for each.
        self._known: dict[str, list[Any]] = {}
        #: Paths that look secret and that code may have.
        self._allowed: set[str] = set()
        self._is_changed = False
        #: Whether the records are about another session than this one.
        self.had_another = False

    def __enter__(self) -> Copies:
        self._project.records.mkdir(parents=True, exist_ok=True)
        self._lock = local._locked(self._project.records / "kernellite.lock")
        self._lock.__enter__()
        recorded = self._read()
        is_ours = recorded.get("session") == self._session_id
        self.had_another = not is_ours and "session" in recorded
        self._known = recorded.get("files", {}) if is_ours else {}
        self._allowed = set(recorded.get("secrets", [])) if is_ours else set()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._is_changed:
                self._write()
        finally:
            if self._lock is not None:
                self._lock.__exit__(kind, error, traceback)

    def allow(self, secrets: Collection[str]) -> None:
        """Lets code have these files although they look secret, as long as the session lives."""
        for path in {os.path.normpath(path) for path in secrets} - self._allowed:
            self._allowed.add(path)
            self._known.pop(path, None)
            self._is_changed = True

    def bring_in(self, below: str = "") -> tuple[int, list[str]]:
        """Copies files that changed here; returns how many, and which were left out and why."""
        copied, total, left_out = 0, 0, []
        for file in self._project.files(below):
            known = self._known.get(file.path)
            if known is not None and known[:2] == [file.size, file.modified_ns]:
                continue
            why = self._secret(file.path) or _too_much(file.path, file.size, copied, total) or self._copy_in(file)
            if why is not None:
                left_out.append(why)
                self._record(file.path, [file.size, file.modified_ns, None, None])
                continue
            copied += 1
            total += file.size
        return copied, _shortened(left_out)

    def bring_back(self) -> list[str]:
        """Writes back files in `data` that changed inside; returns which were left out and why."""
        begin = f"{_WORKSPACE}/{DATA}"
        try:
            if not self._files.stat(begin).is_directory:
                return [f"nothing was written back: {begin} is no longer a directory"]
            listing = self._files.list(begin, recursive=True)
        except Refused as error:
            return [] if error.code == "file_not_found" else [f"nothing was written back: {error}"]
        left_out = []
        if listing.more:
            left_out.append(f"{listing.more} files, because there are too many")
        copied = total = 0
        for entry in listing.files:
            path = f"{DATA}/{entry.path}"
            known = self._known.get(path)
            if entry.kind != "file" or _is_half_written(entry.path):
                continue
            if known is not None and known[2:] == _inside(entry):
                continue
            # Code must not replace files that it was not allowed to read.
            secret = self._secret(path)
            why = None if secret else _too_much(path, entry.size, copied, total)
            if why is not None and entry.size <= MAX_FILE:
                # The next call copies it.
                left_out.append(why)
                continue
            why = secret or why or self._copy_back(entry)
            if why is not None:
                left_out.append(why)
                self._record(path, [*(known or [None, None])[:2], *_inside(entry)])
                continue
            copied += 1
            total += entry.size
        return [f"not written back: {what}" for what in _shortened(left_out)]

    def _copy_in(self, file: HostFile) -> str | None:
        try:
            with self._project.reading(file) as opened:
                written = self._files.write(f"{_WORKSPACE}/{file.path}", opened)
        except (OSError, UnicodeError, NoSpace) as error:
            return _shown(f"{file.path} ({error})")
        except Refused as error:
            if error.status != 409:
                raise
            return _shown(f"{file.path} ({error})")
        self._record(file.path, [file.size, file.modified_ns, *_inside(written)])
        return None

    def _copy_back(self, entry: FileInfo) -> str | None:
        parts = entry.path.split("/")
        if not all(map(is_name, parts)):
            return f"{_shown(entry.path)} (not a name for a file)"
        try:
            chunks = self._files.chunks(f"{_WORKSPACE}/{DATA}/{entry.path}")
            written = self._project.write(parts, _bounded(chunks, MAX_FILE))
        except (OSError, UnicodeError, _TooLong, Refused) as error:
            if isinstance(error, Refused) and error.status not in (404, 409):
                raise
            return _shown(f"{entry.path} ({error})")
        self._record(written.path, [written.size, written.modified_ns, *_inside(entry)])
        return None

    def _secret(self, path: str) -> str | None:
        """Why a file is not copied, if it looks secret."""
        return f"{_shown(path)} (it may hold secrets)" if is_secret(path) and path not in self._allowed else None

    def _record(self, path: str, what: list[Any]) -> None:
        self._known[path] = what
        self._is_changed = True

    def _read(self) -> dict[str, Any]:
        try:
            recorded = json.loads(self._record_file.read_text())
        except (OSError, ValueError):
            return {}
        is_valid = isinstance(recorded, dict) and isinstance(recorded.get("files", {}), dict)
        return recorded if is_valid and isinstance(recorded.get("secrets", []), list) else {}

    def _write(self) -> None:
        fresh = self._record_file.with_name(f".{secrets.token_hex(8)}.part")
        recorded = {"session": self._session_id, "files": self._known, "secrets": sorted(self._allowed)}
        fresh.write_text(json.dumps(recorded))
        os.replace(fresh, self._record_file)


def _inside(file: FileInfo) -> list[Any]:
    """What is recorded about a file inside."""
    return [file.size, file.modified.isoformat()]


class _TooLong(BelljarError):
    """A file that grew while it was read."""


def _bounded(chunks: Iterator[bytes], size: int) -> Iterator[bytes]:
    for chunk in chunks:
        size -= len(chunk)
        if size < 0:
            raise _TooLong(f"larger than {MAX_FILE >> 20} MiB")
        yield chunk


def _too_much(path: str, size: int, copied: int, total: int) -> str | None:
    if size > MAX_FILE:
        return f"{_shown(path)} ({size >> 20} MiB; the limit is {MAX_FILE >> 20} MiB)"
    if copied >= MAX_FILES:
        return f"{_shown(path)} (more than {MAX_FILES} files)"
    if total + size > MAX_TOTAL:
        return f"{_shown(path)} (more than {MAX_TOTAL >> 20} MiB in total)"
    return None


def _is_half_written(path: str) -> bool:
    """Whether this is a temporary file of `save`."""
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(".part")


def _shown(text: str) -> str:
    """Text without control characters: code may have chosen the name."""
    return "".join(character if character.isprintable() else "?" for character in text)


def _shortened(what: list[str]) -> list[str]:
    more = len(what) - _MAX_NAMED
    return what if more <= 0 else [*what[:_MAX_NAMED], f"and {more} more"]
