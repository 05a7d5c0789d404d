"""Walks /dev for anything but the harmless few: a disk, /dev/kvm, /dev/fuse, /dev/net/tun ...

Stopped by a /dev of the sandbox's own, with null, zero, full, random, urandom, tty and ptys.
"""
import os
import stat

HARMLESS = {(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 2)}  # null zero full random urandom tty ptmx

holes, seen = [], []
for folder, folders, files in os.walk("/dev"):
    for path in [os.path.join(folder, name) for name in files + folders]:
        info = os.lstat(path)
        number = (os.major(info.st_rdev), os.minor(info.st_rdev))
        seen.append(path)
        if stat.S_ISBLK(info.st_mode):
            holes.append(f"block device {path}")
        elif stat.S_ISCHR(info.st_mode) and number not in HARMLESS and not 136 <= number[0] <= 143:
            holes.append(f"character device {path} {number}")
        elif stat.S_ISSOCK(info.st_mode):
            holes.append(f"socket {path}")
assert seen, "/dev is empty: even null is missing"
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted(seen)}")
