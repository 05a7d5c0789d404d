"""Stores, requests and lists keys in the kernel's keyrings.

Keyrings ignore most namespaces: they would carry data between sandboxes and show the host's credentials.
Stopped by seccomp.
"""
import ctypes
import errno
import os

ADD_KEY = {"x86_64": 248, "aarch64": 217}[os.uname().machine]
REQUEST_KEY = {"x86_64": 249, "aarch64": 218}[os.uname().machine]
KEYCTL = {"x86_64": 250, "aarch64": 219}[os.uname().machine]
PROCESS_KEYRING, SESSION_KEYRING, KEYCTL_GET_KEYRING_ID = -2, -3, 0
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


attempts = {
    "add_key": syscall(ADD_KEY, b"user", b"belljar", b"x", 1, PROCESS_KEYRING),
    "request_key": syscall(REQUEST_KEY, b"user", b"belljar", None, 0),
    "keyctl": syscall(KEYCTL, KEYCTL_GET_KEYRING_ID, SESSION_KEYRING, 0),
}
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
