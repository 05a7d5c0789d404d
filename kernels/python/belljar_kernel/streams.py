"""stdin, stdout and stderr, made whole again before every exec.

User code may close descriptors 0, 1 and 2, point them elsewhere, or replace `sys.stdout`. None of that may
outlive the cell: the guest reads descriptors 1 and 2 for as long as the kernel lives, so private duplicates
are kept, and put back with one system call each before the next exec. That is cheaper than finding out
whether anything was changed.
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
        # Whatever the parent gave us as stdin, nobody will ever type there: reading must end at once. Cells that
        # take input do so elsewhere, see `inputs`.
        null = os.open(os.devnull, os.O_RDONLY)
        self._saved = [private_fd(null), private_fd(1), private_fd(2)]
        os.close(null)
        self.stdin: Any = io.StringIO()
        self.stdout: Any = self.stdin
        self.stderr: Any = self.stdin
        self.repair()

    def repair(self, stdin: TextIO | None = None) -> None:
        """Gives the next exec working descriptors and stream objects, and this `sys.stdin` if it has its own."""
        for fd, saved in enumerate(self._saved):
            os.dup2(saved, fd)
        # A program that shares the pipe (node does) may have left it non-blocking, and print() would fail.
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
        """Pushes everything printed so far into the pipes.

        A failing flush is the user's doing (a closed descriptor) and not worth dying for: the buffer keeps
        its bytes, and they go out after the next `repair`.
        """
        for stream in (self.stdout, self.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                pass

    def flush_replacements(self) -> None:
        """Flushes what the user put in place of our streams. Runs user code."""
        for stream, ours in ((sys.stdout, self.stdout), (sys.stderr, self.stderr)):
            if stream is not ours and stream is not None:
                try:
                    stream.flush()
                except Exception:
                    # It belongs to the user and may be closed, or not be a stream at all.
                    pass

    def saved(self) -> list[int]:
        """The private duplicates: of nothing to read, of stdout and of stderr."""
        return list(self._saved)

    def close_private(self) -> None:
        """In a forked child: nothing to repair there, and the pipes must close when the child lets go."""
        saved, self._saved = self._saved, []  # a child of the child comes here again
        for fd in saved:
            os.close(fd)


def _unusable(stream: TextIO) -> bool:
    """True when the user closed the stream, or took its buffer away with detach()."""
    try:
        return stream.closed or not isinstance(stream, io.TextIOWrapper)
    except ValueError:
        return True


def _open_stdin() -> TextIO:
    return open(0, encoding="utf-8", errors="replace", closefd=False)


def _open_output(fd: int) -> TextIO:
    # open() with buffering=1 on text means line buffering: a write that contains \n or \r is flushed.
    return open(fd, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
