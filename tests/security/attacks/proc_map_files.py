"""Opens the files behind its own memory mappings through /proc/self/map_files.

For a zygote's child these are files on the host's mounts, not the sandbox's. Stopped by the kernel
(checkpoint capability) and by file ownership.
"""
import os

holes, refused, names = [], set(), os.listdir("/proc/self/map_files")
for name in names:
    try:
        os.close(os.open(f"/proc/self/map_files/{name}", os.O_RDWR))
        holes.append(name)
    except OSError as error:
        refused.add(error.strerror)
assert names, "no mapping is listed"
print(f"ESCAPED: opened {holes[:3]} for writing" if holes else f"CONTAINED: {sorted(refused)}")
