"""Reads physical memory and kernel pages: /proc/kcore, /dev/mem, page counts and page flags.

kcore holds everything, the host's secrets included. Stopped by masks, ownership and a minimal /dev.
"""
PATHS = "/proc/kcore /proc/kpagecount /proc/kpageflags /proc/kpagecgroup /dev/mem /dev/kmem /dev/port".split()

holes, refused = [], set()
for path in PATHS:
    try:
        with open(path, "rb", buffering=0) as file:
            if file.read(64):
                holes.append(path)
            else:
                refused.add("masked, empty")
    except OSError as error:
        refused.add(error.strerror)
print(f"ESCAPED: readable: {holes}" if holes else f"CONTAINED: {sorted(refused)}")
