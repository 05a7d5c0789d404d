"""Returns unused memory to the system while the kernel is idle.

    exec ends -> how much has the kernel grown? -> little: nothing happens
                                                -> much: short idle time -> trim
                                                   still much: longer idle time -> collect, trim

A process often keeps freed memory: malloc keeps free blocks between used ones, and cyclic objects wait for the garbage
collector. A new kernel shares nearly all its memory with others, and writing to a shared page copies it: so nothing
happens before a kernel has grown. Preloaded objects are exempt from collections (`gc.freeze`).

The next exec may arrive at any time. Trimming takes at most 50 ms per gigabyte, and usually a fraction of a
millisecond. A collection cannot be stopped and may take a second, so it waits for a much longer idle time.
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

# Less than this is not worth the time.
WORTHWHILE_BYTES = 32 << 20
# Execs that follow each other closely are not delayed.
TRIM_AFTER_SECONDS = 0.05
# The idle time before a collection, as a multiple of its duration: so few execs have to wait for one.
COLLECT_SHARE = 20
# The assumed duration of the first collection: measured with a gigabyte of small lists.
COLLECT_SECONDS_PER_BYTE = 0.8 / (1 << 30)
COLLECT_AFTER_SECONDS = 0.5

_PAGE = os.sysconf("SC_PAGE_SIZE")

_libc: Any = None


class Housekeeping:
    """What to do about this kernel's memory, and after how much idle time."""

    def __init__(self) -> None:
        self._at_start = private_bytes()
        # The next step and the idle time before it.
        self._step: Any = None
        self._silence = 0.0
        self._collection_seconds: float | None = None

    @property
    def silence(self) -> float | None:
        """The idle time until `work` may be called; None if there is nothing to do."""
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
        # User code has disabled the collector.
        if grown < WORTHWHILE_BYTES or not gc.isenabled():
            return
        expected = self._collection_seconds
        if expected is None:
            expected = grown * COLLECT_SECONDS_PER_BYTE
        self._step, self._silence = self._collect, max(COLLECT_AFTER_SECONDS, COLLECT_SHARE * expected)

    def _collect(self) -> None:
        start = time.perf_counter()
        try:
            # It may call a user's `__del__`.
            interrupts.call_user(gc.collect)
        except BaseException:
            # The interrupt is for the exec that has arrived meanwhile; the guest repeats it.
            pass
        self._collection_seconds = time.perf_counter() - start
        trim()

    def _grown(self) -> int:
        return private_bytes() - self._at_start


def private_bytes() -> int:
    """Anonymous memory of this process. Memory shared with others counts too, now as at the start."""
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
    """Returns free memory of the allocators to the system, where they support it."""
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
        # Another libc, or a pyarrow that user code has replaced.
        pass
