"""Reads the flags of every mount: each must be nosuid, and nodev unless it serves /dev.

A setuid file or a device node on a mount without them is a way to root on the host's hardware.
Stopped by the flags which the sandbox puts on every mount before it locks them.
"""
mounts, holes = 0, []
for line in open("/proc/self/mountinfo"):
    point, options = line.split()[4:6]
    options = options.split(",")
    mounts += 1
    if "nosuid" not in options:
        holes.append(f"{point} honours setuid files")
    if "nodev" not in options and point != "/dev" and not point.startswith("/dev/"):
        holes.append(f"{point} honours device nodes")

assert mounts, "no mount is listed: nothing was examined"
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {mounts} mounts, all nosuid and nodev")
