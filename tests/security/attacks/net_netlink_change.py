"""Changes the network by route netlink: an address for lo, a new dummy and a new veth interface.

Links are the first brick of a bridge to the outside, and their code is a common target. Stopped by having
no CAP_NET_ADMIN.
"""
import errno
import socket
import struct

RTM_NEWLINK, RTM_NEWADDR = 16, 20
REQUEST_ACK_CREATE_EXCLUSIVE = 1 | 4 | 0x400 | 0x200


def attribute(kind, data):
    return struct.pack("<HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def link(kind, name):
    return bytes(16) + attribute(3, name) + attribute(18, attribute(1, kind))  # IFNAME, LINKINFO, INFO_KIND


address = struct.pack("<BBBBi", 2, 24, 0, 0, 1) + attribute(2, bytes([10, 9, 8, 7]))  # IFA_LOCAL
MESSAGES = {
    "address": (RTM_NEWADDR, address),
    "dummy": (RTM_NEWLINK, link(b"dummy", b"bj0\0")),
    "veth": (RTM_NEWLINK, link(b"veth", b"bj1\0")),
    "bridge": (RTM_NEWLINK, link(b"bridge", b"bj2\0")),
}
holes, refused = [], set()
for name, (kind, body) in MESSAGES.items():
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as route:
            route.settimeout(5)
            route.send(struct.pack("<IHHII", 16 + len(body), kind, REQUEST_ACK_CREATE_EXCLUSIVE, 1, 0) + body)
            code = -struct.unpack("<i", route.recv(4096)[16:20])[0]
    except OSError as error:
        code = error.errno
    refused.add(errno.errorcode.get(code, str(code)))
    if code not in (errno.EPERM, errno.EACCES, errno.EAFNOSUPPORT):
        holes.append(f"{name}: {errno.errorcode.get(code, 'done')}")
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {sorted(refused)}")
