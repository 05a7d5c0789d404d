"""System calls that Python has no function for: fork without hooks, closing descriptors, process names, huge pages."""

from __future__ import annotations

import ctypes
import os
import platform

_MADV_COLLAPSE = 25
_PR_SET_NAME = 15
# The largest descriptor; gVisor refuses larger numbers.
_LAST_FD = 0x7FFFFFFF

# Calls that not every libc has a function for.
_SYSCALLS = {"x86_64": {"close_range": 436}, "aarch64": {"close_range": 436}}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
# Called with the interpreter's lock held, so that the child holds it too.
_bare_fork = ctypes.PyDLL(None, use_errno=True).fork
_libc.prctl.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def fork_without_hooks() -> int:
    """Forks without the fork hooks of libraries, which take one or two milliseconds.

    Only for a process with one thread, and a child that does not need the effects of these hooks.
    """
    return _check(_bare_fork(), "fork")


def close_other_fds(keep: list[int]) -> None:
    """Closes every descriptor but 0, 1, 2 and those to keep."""
    first = 3
    for fd in sorted(keep):
        if fd > first:
            _syscall("close_range", first, fd - 1, 0)
        first = fd + 1
    _syscall("close_range", first, _LAST_FD, 0)


def set_process_name(name: str) -> None:
    """Sets the name that `ps` shows; the system keeps fifteen bytes of it."""
    _check(_libc.prctl(_PR_SET_NAME, os.fsencode(name), 0, 0, 0), "PR_SET_NAME")


def collapse_pages(address: int, length: int) -> bool:
    """Converts a range of memory to one huge page, if the system supports it."""
    return bool(_libc.madvise(address, length, _MADV_COLLAPSE) == 0)


def _syscall(name: str, *arguments: object) -> None:
    numbers = _SYSCALLS.get(platform.machine())
    if numbers is None:
        raise OSError(f"{name}: unknown on this machine ({platform.machine()})")
    # Without a declared type ctypes passes plain integers as 32-bit ints, and the upper half of the register
    # would be undefined.
    longs = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    _check(_libc.syscall(ctypes.c_long(numbers[name]), *longs), name)


def _check(result: int, step: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{step}: {os.strerror(number)}")
    return result
