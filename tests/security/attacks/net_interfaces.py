"""Looks for a network interface other than loopback.

Stopped by a network namespace of its own. Some kernels put sleeping tunnels (sit0, tunl0 ...) into every
namespace; these count only when they are up.
"""
import fcntl
import socket
import struct

SIOCGIFFLAGS, IFF_UP = 0x8913, 1
TUNNELS = ("sit", "tunl", "ip6", "gre", "erspan", "ip_vti")
probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
names = {line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]}
try:
    names |= {name for _, name in socket.if_nameindex()}
except OSError:
    pass  # Without netlink; /proc/net/dev has told us.

holes = []
for name in names - {"lo"}:
    request = fcntl.ioctl(probe, SIOCGIFFLAGS, struct.pack("16sH14x", name.encode(), 0))
    if struct.unpack("16xH14x", request)[0] & IFF_UP or not name.startswith(TUNNELS):
        holes.append(name)
assert "lo" in names, "not even loopback is listed"
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {sorted(names)}")
