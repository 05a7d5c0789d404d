"""Reads the options of every mount: what is not meant to be written is read-only, and data cannot be executed.

Other walls stop writing as well; this asks for the mount alone, so that the others are the second wall and not the
first. Stopped by the options that each mount gets before anybody can see it.
"""
# only: native
WRITABLE = ("/session", "/tmp", "/dev", "/proc", "/volumes")
NOT_EXECUTABLE = ("/data", "/proc", "/dev/pts", "/etc")
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")


def below(point, places):
    return any(point == place or point.startswith(f"{place}/") for place in places)


holes, mounts = [], 0
for line in open("/proc/self/mountinfo"):
    point, options = line.split()[4:6]
    options = options.split(",")
    mounts += 1
    if "ro" not in options and not below(point, WRITABLE):
        holes.append(f"{point} is writable")
    if "noexec" not in options and below(point, NOT_EXECUTABLE + DEVICES):
        holes.append(f"{point} is executable")
    if "nodev" not in options and point not in DEVICES + ("/", "/dev/pts"):
        holes.append(f"{point} honours device nodes")
    if "nosuid" not in options:
        holes.append(f"{point} honours set-user-id files")
assert mounts, "no mount is listed: nothing was examined"
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {mounts} mounts")
