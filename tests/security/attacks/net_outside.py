"""Looks for a route to the internet, the local network and a cloud's metadata service.

Connecting a UDP socket sends nothing, but succeeds where a route exists. Stopped by a network namespace
with loopback only.
"""
import errno
import socket

ADDRESSES = "1.1.1.1 8.8.8.8 169.254.169.254 10.0.0.1 172.17.0.1 192.168.1.1 224.0.0.1 255.255.255.255"
ADDRESSES6 = "2606:4700:4700::1111 fd00:ec2::254 ff02::1"

holes, refused = [], set()
for family, addresses in ((socket.AF_INET, ADDRESSES), (socket.AF_INET6, ADDRESSES6)):
    for address in addresses.split():
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                probe.connect((address, 53))
                source = probe.getsockname()[0]
        except OSError as error:
            refused.add(errno.errorcode.get(error.errno, str(error)))
            continue
        if source not in ("127.0.0.1", "::1"):
            holes.append(f"{address} from {source}")
try:
    socket.create_connection(("1.1.1.1", 443), timeout=5).close()
    holes.append("TCP to 1.1.1.1")
except OSError as error:
    refused.add(errno.errorcode.get(error.errno, str(error)))
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {sorted(refused)}")
