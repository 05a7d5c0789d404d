"""Opens raw and packet sockets, to read and forge everything on the wire.

Stopped by having no CAP_NET_RAW, and by seccomp for AF_PACKET.
"""
import errno
import socket

ATTEMPTS = {
    "raw ICMP": (socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "raw IP": (socket.AF_INET, socket.SOCK_RAW, 255),
    "raw ICMPv6": (socket.AF_INET6, socket.SOCK_RAW, 58),
    "all packets": (17, socket.SOCK_RAW, socket.htons(3)),
    "cooked packets": (17, socket.SOCK_DGRAM, socket.htons(3)),
    "the old packet type": (socket.AF_INET, 10, socket.htons(3)),
}
holes, refused = [], set()
for name, arguments in ATTEMPTS.items():
    try:
        socket.socket(*arguments).close()
        holes.append(name)
    except OSError as error:
        refused.add(errno.errorcode[error.errno])
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {sorted(refused)}")
