"""Looks whether everything that the image is put together from is mounted read-only, each part by itself.

The root may be read-only while /usr, a mount of its own, is not. Stopped by restricting a tree with all that is mounted
below it.
"""
# only: native
PARTS = ("/usr", "/etc", "/opt", "/bin", "/lib", "/lib64", "/sbin")
holes, parts = [], 0
for line in open("/proc/self/mountinfo"):
    point, options = line.split()[4:6]
    if any(point == part or point.startswith(f"{part}/") for part in PARTS):
        parts += 1
        if "ro" not in options.split(","):
            holes.append(point)
assert parts, "the image has no parts: nothing was examined"
print(f"ESCAPED: writable: {holes}" if holes else f"CONTAINED: {parts} parts")
