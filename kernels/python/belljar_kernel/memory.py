"""Memory that is not used any more goes back to the system, while nobody waits for it.

    exec ends -> how much has the kernel grown? -> little: nothing happens
                                                -> much: a moment of silence -> trim
                                                   still much: a longer silence -> collect, trim

Freed memory often stays with the process: malloc keeps what lies between two blocks that are in use, and objects that
refer to each other wait for the garbage collector. Both are dealt with here. A fresh kernel shares nearly everything
with its zygote, and writing to what is shared would copy it: so nothing happens before a kernel has grown. What the
zygote had imported is frozen, and no collection touches it.

The next exec may come at any time. Trimming takes 50 ms for a gigabyte at worst and mostly a fraction of one. A
collection cannot be stopped and may take a second; it waits for a silence that is long beside it.
"""

from __future__ import annotations

import gc
import os
import sys
import time

from . import interrupts

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from typing import Any

# Less than this is not worth anybody's time.
WORTHWHILE_BYTES = 32 << 20
# Execs that follow each other closely are not disturbed.
TRIM_AFTER_SECONDS = 0.05
# A silence this many times as long as what it is used for: one exec in that many meets a collection.
COLLECT_SHARE = 20
# What a collection takes is known after the first. Until then: a gigabyte of small lists, measured.
COLLECT_SECONDS_PER_BYTE = 0.8 / (1 << 30)
COLLECT_AFTER_SECONDS = 0.5

_PAGE = os.sysconf("SC_PAGE_SIZE")

_libc: Any = None


class Housekeeping:
    """What is to be done about this kernel's memory, and after how much silence."""

    def __init__(self) -> None:
        self._at_start = private_bytes()
        # The next step and the silence before it.
        self._step: Any = None
        self._silence = 0.0
        self._collection_seconds: float | None = None

    @property
    def silence(self) -> float | None:
        """How long it must be quiet until `work` may be called; None if there is nothing to do."""
        return None if self._step is None else self._silence

    def exec_ended(self) -> None:
        if self._grown() < WORTHWHILE_BYTES:
            self._step = None
        else:
            self._step, self._silence = self._trim_first, TRIM_AFTER_SECONDS

    def work(self) -> None:
        step, self._step = self._step, None
        if step is not None:
            step()

    def _trim_first(self) -> None:
        trim()
        grown = self._grown()
        # Somebody who switched the collector off had a reason.
        if grown < WORTHWHILE_BYTES or not gc.isenabled():
            return
        expected = self._collection_seconds
        if expected is None:
            expected = grown * COLLECT_SECONDS_PER_BYTE
        self._step, self._silence = self._collect, max(COLLECT_AFTER_SECONDS, COLLECT_SHARE * expected)

    def _collect(self) -> None:
        start = time.perf_counter()
        try:
            # It may call a `__del__` of the user's.
            interrupts.call_user(gc.collect)
        except BaseException:
            # Meant for the exec that has arrived meanwhile; the guest says it again.
            pass
        self._collection_seconds = time.perf_counter() - start
        trim()

    def _grown(self) -> int:
        return private_bytes() - self._at_start


def private_bytes() -> int:
    """Memory of this process that is not a file's. What it shares with the zygote counts, now as at the start."""
    try:
        fd = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0
    try:
        fields = os.read(fd, 128).split()
    finally:
        os.close(fd)
    return (int(fields[1]) - int(fields[2])) * _PAGE


def trim() -> None:
    """Returns what is free to the system, as far as those who manage it can be asked to."""
    global _libc
    arrow = sys.modules.get("pyarrow")
    try:
        if arrow is not None:
            arrow.default_memory_pool().release_unused()
        if _libc is None:
            import ctypes

            _libc = ctypes.CDLL(None)
        _libc.malloc_trim(0)
    except Exception:
        # Another libc, or a pyarrow that the user has put something else in place of.
        pass
