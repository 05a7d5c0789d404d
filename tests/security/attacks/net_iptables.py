"""Replaces the firewall's tables by setsockopt, the old interface to netfilter.

It needs no netlink and has its own history of exploits. Stopped by having no CAP_NET_ADMIN.
"""
import errno
import socket

holes, refused = [], set()
for family, level in ((socket.AF_INET, 0), (socket.AF_INET6, 41)):
    for option in (64, 96):  # ip(6)tables and arptables/ebtables, "replace"
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.setsockopt(level, option, bytes(256))
            holes.append((level, option))
        except OSError as error:
            refused.add(errno.errorcode[error.errno])
            if error.errno in (errno.EINVAL, errno.EFAULT, errno.ENOMEM) and option == 64:
                holes.append((level, option, "the table code read our data"))
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {sorted(refused)}")
