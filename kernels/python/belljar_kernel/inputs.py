"""`input()`, `sys.stdin` and `getpass()`.

A cell that takes input gets its own `sys.stdin`. Reading from it asks the guest, which answers with one line when it
has one; an empty answer is the end. Input that a cell does not read is dropped. In all other cells these functions
raise an error at once.

A script's input is a stream: the guest answers with all bytes that it has, and `input()` prints its prompt as Python
does.

Descriptor 0 is always `/dev/null`: programs that a cell starts read the end of their input.
"""

from __future__ import annotations

import builtins
import io
import sys

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TextIO

_NO_INPUT = "{} is not available here: this execution takes no input; pass the value in the code instead"

# A longer prompt is cut.
MAX_PROMPT_CHARS = 10_000

# Set by the kernel: asks the guest for a line, given the prompt and whether the answer is a password, or for any part
# of a stream.
ask: Callable[[str, bool, bool], bytes]

# `sys.stdin` of the cell that runs, if it takes input.
_stdin: TextIO | None = None
# The prompt of the next question, if the code has given one.
_question: tuple[str, bool] = ("", False)
# Whether the cell that runs is a script.
_is_stream = False


def install() -> None:
    builtins.input = _input


def begin(wanted: bool, is_stream: bool = False) -> TextIO | None:
    """Called before a cell runs: returns its `sys.stdin`, if it takes input."""
    global _stdin, _is_stream
    _stdin, _is_stream = None, is_stream
    if wanted:
        _stdin = io.TextIOWrapper(io.BufferedReader(_Lines()), encoding="utf-8", errors="replace")
    return _stdin


def replace_getpass(module: Any) -> None:
    """Makes `getpass.getpass` ask as `input` does, instead of warning about a missing terminal."""
    module.getpass = _getpass


class _Lines(io.RawIOBase):
    """The answers of the guest as a stream. After the end of the input there is nothing more."""

    def __init__(self) -> None:
        self._rest = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 0

    def readinto(self, buffer: Any) -> int:
        if not self._rest and not self._ended:
            # A password is always one line.
            stream = _is_stream and not _question[1]
            self._rest = ask(*_question, stream)  # noqa: F821 - the kernel assigns it
            self._ended = not self._rest
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def _input(prompt: object = "", /) -> str:
    if _stdin is None:
        # input() raises EOFError at the end of stdin, so careful programs handle it.
        raise EOFError(_NO_INPUT.format("input()"))
    stream = sys.stdin
    if (stream is _stdin or stream is None) and not _is_stream:
        return _answer(_stdin, prompt, False)
    # A script, or code that has replaced `sys.stdin`: read from it as Python does.
    print(prompt, end="", flush=True)
    return _without_newline((stream or _stdin).readline())


def _getpass(prompt: str = "Password: ", stream: Any = None, **_: Any) -> str:
    if _stdin is None:
        raise EOFError(_NO_INPUT.format("getpass()"))
    return _answer(_stdin, prompt, True)


def _answer(stdin: TextIO, prompt: object, password: bool) -> str:
    global _question
    _question = (str(prompt)[:MAX_PROMPT_CHARS], password)
    try:
        return _without_newline(stdin.readline())
    finally:
        _question = ("", False)


def _without_newline(line: str) -> str:
    if not line:
        raise EOFError("EOF when reading a line")
    return line[:-1] if line.endswith("\n") else line
