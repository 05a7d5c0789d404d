"""`input()`, `sys.stdin` and `getpass()`: lines that somebody outside types, or nobody at all.

A cell that takes input gets a `sys.stdin` of its own. Reading from it asks the guest, which answers with one line
when it has one; an empty answer is the end. What one cell leaves unread is gone with its `sys.stdin`. In all other
cells nobody can answer, which is said at once.

A script's input is a stream: the guest answers with whatever it has, and `input()` prints its prompt as Python does.

Descriptor 0 is `/dev/null` all the same: programs that a cell starts find the end of their input.
"""

from __future__ import annotations

import builtins
import io
import sys

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TextIO

_NO_INPUT = "{} is not available here: nobody can answer a prompt; pass the value in the code instead"

# A question that is longer is cut: it is shown to somebody.
MAX_PROMPT_CHARS = 10_000

# Set by the kernel: asks the guest for a line, given the prompt and whether the answer is a password, or for any part
# of a stream.
ask: Callable[[str, bool, bool], bytes]

# `sys.stdin` of the cell that runs, if it takes input.
_stdin: TextIO | None = None
# What the next question is, when the code has said what it wants to know.
_question: tuple[str, bool] = ("", False)
# Whether the cell that runs is a script.
_is_stream = False


def install() -> None:
    builtins.input = _input


def begin(wanted: bool, is_stream: bool = False) -> TextIO | None:
    """A cell is about to run: its `sys.stdin`, if it takes input."""
    global _stdin, _is_stream
    _stdin, _is_stream = None, is_stream
    if wanted:
        _stdin = io.TextIOWrapper(io.BufferedReader(_Lines()), encoding="utf-8", errors="replace")
    return _stdin


def replace_getpass(module: Any) -> None:
    """Makes `getpass.getpass` ask as `input` does, instead of warning about a missing terminal."""
    module.getpass = _getpass


class _Lines(io.RawIOBase):
    """What the guest answers, as a stream. The end of the input is for ever."""

    def __init__(self) -> None:
        self._rest = b""
        self._ended = False

    def readable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 0

    def readinto(self, buffer: Any) -> int:
        if not self._rest and not self._ended:
            # A password is a line, wherever it comes from.
            stream = _is_stream and not _question[1]
            self._rest = ask(*_question, stream)  # noqa: F821 - the kernel assigns it
            self._ended = not self._rest
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def _input(prompt: object = "", /) -> str:
    if _stdin is None:
        # EOFError is what input() raises when stdin has ended, so careful programs already expect it.
        raise EOFError(_NO_INPUT.format("input()"))
    stream = sys.stdin
    if (stream is _stdin or stream is None) and not _is_stream:
        return _answer(_stdin, prompt, False)
    # A script asks as Python does. Or the code has put something else in the place of `sys.stdin`, and means that.
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
