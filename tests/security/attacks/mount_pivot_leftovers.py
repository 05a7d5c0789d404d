"""Looks for the old root: left under a well-known name, or stacked below /.

Where it was not unmounted after pivot_root, the host's whole file system is one lookup away.
Stopped by a lazy unmount of the old root before any code runs.
"""
import os

NAMES = """/oldroot /.oldroot /old_root /old-root /.old /old /put_old /.put_old /.pivot_root /pivot /newroot
/new_root /host /hostfs /rootfs /mnt /media /.old_root /.belljar /tmp/oldroot /tmp/.old""".split()

holes = []
for name in NAMES:
    try:
        inside = os.listdir(name)
    except OSError:
        continue
    if inside:
        holes.append(f"{name} holds {inside[:5]}")

points = [line.split()[4] for line in open("/proc/self/mountinfo")]
if points.count("/") != 1:
    holes.append(f"{points.count('/')} mounts are stacked on /")
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: none of {len(NAMES)} names, one mount on /")
