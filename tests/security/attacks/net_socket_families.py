"""Opens a socket of every address family but UNIX, IPv4, IPv6 and netlink.

Most kernel break-outs of late began in a family nobody needs: ALG, RXRPC, VSOCK, PACKET, XDP, KEY, CAN,
TIPC, Bluetooth. Opening one also loads its module. Stopped by seccomp.
"""
import errno
import socket

NEEDED = {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}
KINDS = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_RDM, socket.SOCK_SEQPACKET)

holes, refused = [], set()
for family in set(range(1, 47)) - NEEDED:
    for kind in KINDS:
        try:
            socket.socket(family, kind, 0).close()
            holes.append((family, kind.name))
        except OSError as error:
            refused.add(errno.errorcode[error.errno])
            if error.errno in (errno.ESOCKTNOSUPPORT, errno.EPROTONOSUPPORT):
                holes.append((family, "the family answered"))
print(f"ESCAPED: {sorted(set(map(str, holes)))}" if holes else f"CONTAINED: {sorted(refused)}")
