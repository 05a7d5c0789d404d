"""Reopens its descriptors for writing through /proc/self/fd, which ignores how they were opened.

A host file handed in read-only would become writable. Stopped by handing in pipes and sockets, or files
of another owner.
"""
import os
import stat

holes, tried = [], []
for number in map(int, os.listdir("/proc/self/fd")):
    try:
        info = os.fstat(number)
    except OSError:
        continue  # The listing's own descriptor, closed by now.
    link = os.readlink(f"/proc/self/fd/{number}")
    ours = os.path.exists(link) and os.path.samestat(info, os.stat(link))
    if ours or not stat.S_ISREG(info.st_mode) or link.startswith("/memfd:"):
        tried.append(link)
        continue
    try:
        os.close(os.open(f"/proc/self/fd/{number}", os.O_RDWR))
        holes.append(link)
    except OSError as error:
        tried.append(f"{link}: {error.strerror}")
assert tried or holes, "no descriptor is listed"
print(f"ESCAPED: writable: {holes}" if holes else f"CONTAINED: {tried}")
