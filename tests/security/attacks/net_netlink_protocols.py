"""Opens every netlink protocol but ROUTE: NETFILTER, XFRM, AUDIT, SOCK_DIAG, KOBJECT_UEVENT, GENERIC ...

nftables and XFRM are the richest source of kernel exploits there is. Stopped by seccomp.
"""
import errno
import socket

holes, refused = [], set()
for protocol in range(1, 32):
    for kind in (socket.SOCK_RAW, socket.SOCK_DGRAM):
        try:
            socket.socket(socket.AF_NETLINK, kind, protocol).close()
            holes.append(protocol)
        except OSError as error:
            refused.add(errno.errorcode[error.errno])
print(f"ESCAPED: protocols {sorted(set(holes))}" if holes else f"CONTAINED: {sorted(refused)}")
