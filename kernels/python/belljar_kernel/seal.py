"""The system calls that put a process into a sandbox and take its privileges away.

Every step raises OSError with the name of the step, and nothing here is optional: a kernel that could not be
sealed completely must not run. ctypes and libc are loaded by the zygote, before it forks.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

# All namespaces of a sandbox but the PID namespace, which only the children of whoever enters it are in.
SANDBOX_NAMESPACES = (
    CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS | CLONE_NEWCGROUP
)

_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4

_MADV_COLLAPSE = 25
_SECCOMP_SET_MODE_FILTER = 1
_LINUX_CAPABILITY_VERSION_3 = 0x20080522
_BPF_INSTRUCTION_BYTES = 8
# No descriptor is larger; gVisor takes no more for a number of one.
_LAST_FD = 0x7FFFFFFF
# Capability sets are 64 bits wide.
_MAX_CAPABILITIES = 64

# Calls that not every libc has a function for.
_SYSCALLS = {
    "x86_64": {"capset": 126, "seccomp": 317, "close_range": 436, "landlock_restrict_self": 446},
    "aarch64": {"capset": 91, "seccomp": 277, "close_range": 436, "landlock_restrict_self": 446},
}

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
# Called while holding the interpreter's lock: the child must find it held by itself.
_bare_fork = ctypes.PyDLL(None, use_errno=True).fork
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class SockFprog(ctypes.Structure):
    """struct sock_fprog: a seccomp program and its length in instructions."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def fork_without_hooks() -> int:
    """Forks without running what libraries registered for the occasion, which takes a millisecond or two.

    Only for a process with one thread, and a child that uses nothing of what those hooks put in order.
    """
    return _check(_bare_fork(), "fork")


def enter_namespaces(pidfd: int, kinds: int) -> None:
    """setns() into the namespaces of the process behind `pidfd`."""
    _check(_libc.setns(pidfd, kinds), "setns")


def close_other_fds(keep: list[int]) -> None:
    """Closes every descriptor but 0, 1, 2 and those to keep."""
    first = 3
    for fd in sorted(keep):
        if fd > first:
            _syscall("close_range", first, fd - 1, 0)
        first = fd + 1
    _syscall("close_range", first, _LAST_FD, 0)


def drop_bounding_set() -> None:
    """Takes away what executing a privileged file could give back. Needs CAP_SETPCAP, so it comes early."""
    for capability in range(_MAX_CAPABILITIES):
        try:
            _prctl("PR_CAPBSET_DROP", _PR_CAPBSET_DROP, capability)
        except OSError as error:
            if error.errno == errno.EINVAL and capability > 0:
                # One past the last capability that this kernel knows.
                return
            raise


def become(uid: int, gid: int) -> None:
    """Changes the identity for good."""
    try:
        os.setgroups([])
    except PermissionError:
        # A rootless user namespace forbids it; there are no groups to lose in it either.
        pass
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def hide_memory() -> None:
    """Nobody without privileges over our own user namespace may trace this process or open its /proc/PID/mem."""
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, 0)


def show_memory() -> None:
    """Undoes `hide_memory`; without it a process cannot even read its own /proc/self/fd."""
    _prctl("PR_SET_DUMPABLE", _PR_SET_DUMPABLE, 1)


def drop_capabilities() -> None:
    """Empties the ambient, inheritable, permitted and effective sets.

    Not left to setresuid(): it clears them only when the old id was the namespace's root, and a process that
    came from outside has an id that is not mapped in the namespace at all.
    """
    try:
        _prctl("PR_CAP_AMBIENT", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    except OSError as error:
        # gVisor's kernel has no ambient set.
        if error.errno != errno.EINVAL:
            raise
    header = (ctypes.c_uint32 * 2)(_LINUX_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _syscall("capset", header, nothing)


def forbid_new_privileges() -> None:
    _prctl("PR_SET_NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def restrict_files(landlock_fd: int) -> None:
    """Applies a Landlock rule set that the host has prepared."""
    _syscall("landlock_restrict_self", landlock_fd, 0)


def forbid_core_dumps() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def filter_syscalls(program: bytes) -> None:
    """Installs the seccomp filter, an array of struct sock_filter."""
    length, rest = divmod(len(program), _BPF_INSTRUCTION_BYTES)
    if rest:
        raise ValueError("the seccomp program is not a whole number of instructions")
    _syscall("seccomp", _SECCOMP_SET_MODE_FILTER, 0, ctypes.byref(SockFprog(length, program)))


def collapse_pages(address: int, length: int) -> bool:
    """Makes one huge page of a range of memory, if the system can."""
    return _libc.madvise(address, length, _MADV_COLLAPSE) == 0


def _prctl(step: str, option: int, argument: int) -> None:
    _check(_libc.prctl(option, argument, 0, 0, 0), step)


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
