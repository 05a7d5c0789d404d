"""Reads settings as the `belljar` program does: from the environment, then from `.env` in the current directory.

The environment wins over the file. An empty value means the default. tests/env-files.json specifies how a `.env` file
is parsed; the program is tested with it too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from belljar._variables import DEFAULTS, INTERNAL
from belljar.errors import InvalidRequest

_PREFIX = "BELLJAR_"
_BLANKS = " \t\r"
_NAME_BEGINS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_")
_NAME = _NAME_BEGINS | frozenset("0123456789.-")
# In double quotes.
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$"}

# Parsed files by path, with what shows whether a file has changed since.
_read: dict[str, tuple[tuple[int, int, int], dict[str, str]]] = {}


def read(path: str | os.PathLike[str] | None = None) -> dict[str, str]:
    """All non-empty variables of the environment and of the file at `path`; by default `.env`, if it exists."""
    if path is not None:
        file, named = of_file(path), os.fspath(path)
    else:
        file, named = _of_directory(), ".env"
    _refuse_unknown(os.environ, "the environment")
    _refuse_unknown(file, named)
    merged = {**file, **os.environ}
    return {name: value for name, value in merged.items() if value}


def of_file(path: str | os.PathLike[str]) -> dict[str, str]:
    """The variables of a file."""
    try:
        found = os.stat(path)
        state = (found.st_mtime_ns, found.st_size, found.st_ino)
        known = _read.get(os.path.abspath(path))
        if known is not None and known[0] == state:
            return known[1]
        values = parse(Path(path).read_text("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"failed to read `{path}`: it is not UTF-8 text") from error
    except InvalidRequest as error:
        raise InvalidRequest(f"failed to read `{path}`: {error.message}") from error
    _read[os.path.abspath(path)] = (state, values)
    return values


def absolute(path: str) -> str:
    """An absolute path, as the server has another current directory; `~` is the home directory."""
    return os.path.abspath(os.path.expanduser(path))


def _of_directory() -> dict[str, str]:
    try:
        return of_file(".env")
    # A directory with this name is a virtual environment.
    except (FileNotFoundError, IsADirectoryError):
        return {}
    except OSError as error:
        raise InvalidRequest(f"failed to read `.env`: {error.strerror}") from error


def _refuse_unknown(names: Mapping[str, str], place: str) -> None:
    """Raises an error for an unknown setting: it is probably misspelled, and would have no effect."""
    unknown = sorted(name for name in names if name.startswith(_PREFIX) and not _is_known(name))
    if unknown:
        import difflib

        [closest] = difflib.get_close_matches(unknown[0], DEFAULTS, n=1, cutoff=0)
        raise InvalidRequest(f"{unknown[0]} in {place} is not a setting; the closest is {closest}")


def _is_known(name: str) -> bool:
    # Kubernetes sets these in every pod if there is a service called `belljar`.
    is_kubernetes = name == "BELLJAR_PORT" or name.startswith(("BELLJAR_PORT_", "BELLJAR_SERVICE_"))
    return name in DEFAULTS or name in INTERNAL or is_kubernetes


def parse(text: str) -> dict[str, str]:
    """The variables of a `.env` file: `NAME=value`, with or without `export`, comments, quotes over many lines."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if "\0" in text:
        raise InvalidRequest(f"line {1 + text[: text.index(chr(0))].count(chr(10))} has a zero byte")
    values: dict[str, str] = {}
    rest, number = text, 1
    while rest:
        line, _, after = rest.partition("\n")
        content = line.strip(_BLANKS)
        if not content or content.startswith("#"):
            rest, number = after, number + 1
            continue
        left, equals, right = line.partition("=")
        name = _name_of(left)
        if not equals or name is None:
            raise InvalidRequest(f"line {number} is neither a comment nor NAME=value")
        behind_equals = rest[len(line) - len(right) :].lstrip(_BLANKS)
        if behind_equals[:1] in ("'", '"'):
            found = _quoted(behind_equals)
            if found is None:
                raise InvalidRequest(f"the quote that line {number} opens is not closed")
            values[name], behind = found
            number += behind_equals[: len(behind_equals) - len(behind)].count("\n")
            left_over, _, rest = behind.partition("\n")
            if left_over.lstrip(_BLANKS)[:1] not in ("", "#"):
                raise InvalidRequest(f"line {number} has text after its closing quote")
        else:
            values[name], rest = _without_comment(right).strip(_BLANKS), after
        number += 1
    return values


def _name_of(left: str) -> str | None:
    """The name on the left of an equals sign."""
    name = left.strip(_BLANKS)
    exported = name.removeprefix("export")
    if exported != name and exported[:1] in tuple(_BLANKS):
        name = exported.lstrip(_BLANKS)
    return name if name[:1] in _NAME_BEGINS and _all_in(name, _NAME) else None


def _all_in(text: Iterable[str], allowed: frozenset[str]) -> bool:
    return all(character in allowed for character in text)


def _without_comment(value: str) -> str:
    """A value that is not quoted ends where a comment begins: at a `#` after a blank."""
    at = value.find("#")
    while at >= 0:
        if at == 0 or value[at - 1] in _BLANKS:
            return value[:at]
        at = value.find("#", at + 1)
    return value


def _quoted(text: str) -> tuple[str, str] | None:
    """The value in the quotes that `text` begins with, and what follows them. Only double quotes know escapes."""
    quote, at = text[0], 1
    value: list[str] = []
    while at < len(text):
        character = text[at]
        if character == quote:
            return "".join(value), text[at + 1 :]
        if character == "\\" and quote == '"':
            at += 1
            escaped = text[at : at + 1]
            value.append(_ESCAPES.get(escaped, f"\\{escaped}"))
        else:
            value.append(character)
        at += 1
    return None
