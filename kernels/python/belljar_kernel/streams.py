"""Restores stdin, stdout and stderr before every exec.

User code may close or redirect descriptors 0, 1 and 2, or replace `sys.stdout`. The next cell must not be affected: the
guest reads descriptors 1 and 2 as long as the kernel lives. So the kernel keeps private duplicates and restores them
before the next exec, with one system call each. That is faster than checking whether they have changed.
"""

from __future__ import annotations

import io
import os
import sys

from .wire import private_fd

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from typing import Any, TextIO


class Streams:
    def __init__(self) -> None:
        # Reading from descriptor 0 must return the end of the input at once, whatever the parent passed. Input of cells
        # has another way, see `inputs`.
        null = os.open(os.devnull, os.O_RDONLY)
        self._saved = [private_fd(null), private_fd(1), private_fd(2)]
        os.close(null)
        self.stdin: Any = io.StringIO()
        self.stdout: Any = self.stdin
        self.stderr: Any = self.stdin
        self.repair()

    def repair(self, stdin: TextIO | None = None) -> None:
        """Gives the next exec working descriptors and stream objects, and its own `sys.stdin` if it has one."""
        for fd, saved in enumerate(self._saved):
            os.dup2(saved, fd)
        # A program that shares the pipe, such as node, may have made it non-blocking, and print() would fail.
        os.set_blocking(1, True)
        os.set_blocking(2, True)
        if self.stdin.closed or not isinstance(self.stdin, io.TextIOWrapper):
            self.stdin = _open_stdin()
        if _unusable(self.stdout):
            self.stdout = _open_output(1)
        if _unusable(self.stderr):
            self.stderr = _open_output(2)
        module: Any = sys
        module.stdin = module.__stdin__ = stdin or self.stdin
        module.stdout = module.__stdout__ = self.stdout
        module.stderr = module.__stderr__ = self.stderr

    def flush(self) -> None:
        """Writes all buffered output to the pipes.

        A flush fails if user code has closed the descriptor. That is ignored: the buffer keeps its bytes, which are
        written after the next `repair`.
        """
        for stream in (self.stdout, self.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass

    def flush_replacements(self) -> None:
        """Flushes streams that user code has put in place of ours. Runs user code."""
        for stream, ours in ((sys.stdout, self.stdout), (sys.stderr, self.stderr)):
            if stream is not ours and stream is not None:
                try:
                    stream.flush()
                except Exception:
                    # The user's object may be closed, or not a stream.
                    pass

    def saved(self) -> list[int]:
        """The private duplicates: of /dev/null, stdout and stderr."""
        return list(self._saved)

    def close_private(self) -> None:
        """In a forked child: closes the duplicates, so that the pipes close when the child closes them."""
        saved, self._saved = self._saved, []  # a child of the child comes here again
        for fd in saved:
            os.close(fd)


def _unusable(stream: TextIO) -> bool:
    """True if user code has closed the stream, or removed its buffer with detach()."""
    try:
        return stream.closed or not isinstance(stream, io.TextIOWrapper)
    except ValueError:
        return True


def _open_stdin() -> TextIO:
    return open(0, encoding="utf-8", errors="replace", closefd=False)


def _open_output(fd: int) -> TextIO:
    # open() with buffering=1 on text means line buffering: a write that contains \n or \r is flushed.
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
