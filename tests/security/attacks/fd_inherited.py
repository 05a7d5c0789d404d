"""Examines every inherited descriptor: none may be a directory, file, namespace or process from outside.

One forgotten descriptor of a host directory is the whole host (CVE-2024-21626). Stopped by closing all
but the needed ones at each boundary.
"""
import os
import stat

SUSPECT = "mnt:[ net:[ user:[ pid:[ ipc:[ uts:[ cgroup:[ pidfd bpf fanotify io_uring seccomp".split()
HARMLESS = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9)}  # null, zero, full, random, urandom

holes, seen = [], {}
for number in map(int, os.listdir("/proc/self/fd")):
    try:
        info, link = os.fstat(number), os.readlink(f"/proc/self/fd/{number}")
    except OSError:
        continue  # The listing's own descriptor, closed by now.
    seen[number] = link
    try:
        same = os.path.samestat(info, os.stat(link))
    except OSError:
        same = False
    device = (os.major(info.st_rdev), os.minor(info.st_rdev))
    if stat.S_ISDIR(info.st_mode) or stat.S_ISBLK(info.st_mode):
        holes.append(f"{number}: directory or disk {link}")
    elif stat.S_ISCHR(info.st_mode) and device not in HARMLESS and not same:
        holes.append(f"{number}: device from elsewhere {link}")
    elif stat.S_ISREG(info.st_mode) and info.st_nlink and not link.startswith("/memfd:") and not same:
        holes.append(f"{number}: file from elsewhere {link}")
    elif any(word in link for word in SUSPECT):
        holes.append(f"{number}: {link}")
assert 1 in seen, "the listing is not ours"
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {seen}")
