"""Searches its own memory for the server's secret, left behind by the process it was forked from.

Clearing the environment does not clear the stack it was passed on. Stopped by a zygote that is executed
with an empty environment, not forked from a process that knows secrets.
"""
# belljar: --timeout 60
import hashlib
import os
import re

wanted = os.environ["CANARY_SHA256"]
name = "".join(reversed("=TERCES_TSET_RAJLLEB")).encode()
SHAPES = re.compile(rb"[0-9a-f]{32,128}|" + re.escape(name) + rb"([\w-]{8,128})")
CHUNK, OVERLAP = 4 << 20, 512

memory, searched, found = os.open("/proc/self/mem", os.O_RDONLY), 0, False
for line in open("/proc/self/maps").readlines():
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    if not line.split()[1].startswith("rw"):
        continue  # Secrets are data: what was never writable holds none.
    for offset in range(start, end, CHUNK):
        try:
            data = os.pread(memory, min(CHUNK + OVERLAP, end - offset), offset)
        except OSError:
            continue  # Unmapped or unreadable by now.
        searched += min(CHUNK, end - offset)
        for match in SHAPES.finditer(data):
            word = match.group(1) or match.group(0)
            found = found or hashlib.sha256(word).hexdigest() == wanted
assert searched > 1 << 20, "hardly any memory could be read"
print("ESCAPED: the canary is in memory" if found else f"CONTAINED: not in {searched >> 20} MiB")
