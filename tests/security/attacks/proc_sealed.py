"""Looks whether the parts of /proc through which the machine is configured are mounted read-only.

Their owner is not us either; this asks for the mount alone. Stopped by mounting each over itself, read-only.
"""
# only: native
import os

holes, seen = [], []
for name in ("bus", "fs", "irq", "sys"):
    path = f"/proc/{name}"
    if os.path.isdir(path):
        seen.append(name)
        if not os.statvfs(path).f_flag & os.ST_RDONLY:
            holes.append(path)
assert seen, "none of them is there"
print(f"ESCAPED: writable mounts: {holes}" if holes else f"CONTAINED: {seen} are read-only")
