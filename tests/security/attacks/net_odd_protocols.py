"""Opens rarely used transport protocols, whose modules load on demand and have been broken often.

SCTP, DCCP, UDP-Lite, L2TP: none is needed by Python code. Stopped by seccomp on the protocol number, or by
a kernel that does not have them.
"""
import errno
import socket

ATTEMPTS = {
    "SCTP": (socket.SOCK_SEQPACKET, 132),
    "SCTP stream": (socket.SOCK_STREAM, 132),
    "DCCP": (6, 33),
    "L2TP": (socket.SOCK_DGRAM, 115),
    "SMC": (socket.SOCK_STREAM, 256),
}
holes, refused = [], set()
for name, (kind, protocol) in ATTEMPTS.items():
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.socket(family, kind, protocol).close()
            holes.append(name)
        except OSError as error:
            refused.add(errno.errorcode[error.errno])
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {sorted(refused)}")
