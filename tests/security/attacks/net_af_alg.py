"""Opens the kernel's crypto interface and binds a hash: the family of several page-cache write bugs.

Such bugs change read-only files shared with the host. Stopped by seccomp.
"""
import errno
import socket

try:
    with socket.socket(38, socket.SOCK_SEQPACKET, 0) as probe:  # AF_ALG
        probe.bind(("hash", "sha256"))
    print("ESCAPED: bound to sha256")
except OSError as error:
    name = errno.errorcode[error.errno]
    # ENOENT comes from bind: the family is open and merely lacks the algorithm.
    print(f"ESCAPED: the family is open ({name})" if name == "ENOENT" else f"CONTAINED: {name}")
