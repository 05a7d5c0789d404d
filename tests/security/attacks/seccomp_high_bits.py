"""Sets the high halves of arguments which the kernel cuts to 32 bits, and of the call number itself.

A filter comparing 64 bits sees "not AF_ALG", the kernel then sees AF_ALG. This broke flatpak and snapd
(CVE-2019-10063, CVE-2019-7303). Stopped by comparing the low word only, or by allow-lists of values.
"""
import ctypes
import errno
import os

SOCKET = {"x86_64": 41, "aarch64": 198}[os.uname().machine]
IOCTL = {"x86_64": 16, "aarch64": 29}[os.uname().machine]
UNSHARE = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
PERSONALITY = {"x86_64": 135, "aarch64": 92}[os.uname().machine]
HIGH, TIOCSTI = 1 << 32, 0x5412
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


attempts = {
    "unshare by a high number": syscall(HIGH | UNSHARE, 0x10000000),
    "unshare with a high flag": syscall(UNSHARE, HIGH | 0x10000000),
    "AF_ALG": syscall(SOCKET, HIGH | 38, 5, 0),
    "AF_VSOCK": syscall(SOCKET, HIGH | 40, 1, 0),
    "AF_PACKET": syscall(SOCKET, HIGH | 17, 3, 0),
    "AF_NETLINK, netfilter": syscall(SOCKET, HIGH | 16, HIGH | 3, HIGH | 12),
    "netfilter in the protocol": syscall(SOCKET, 16, 3, HIGH | 12),
    "raw socket in the type": syscall(SOCKET, 2, HIGH | 3, 1),
    "TIOCSTI": syscall(IOCTL, 0, HIGH | TIOCSTI, b"x"),
    "personality": syscall(PERSONALITY, HIGH | 0x0400000),
}
REFUSALS += ("EAFNOSUPPORT",)  # The filter may say so; and so may a kernel without that family.
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
