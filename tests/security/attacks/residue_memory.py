"""Looks in its own memory for marks that another sandbox's code left there, and leaves some itself.

Run twice or more: a reused kernel process, or a zygote that ran user code, would carry data from one
conversation into the next. Stopped by forking each kernel from a zygote that never ran any.
"""
# repeat: 2
import os
import re
import uuid

half = uuid.uuid4().hex  # Written twice, so that a mark half overwritten is not taken for another.
own = f"belljar-residue-{half}{half}".encode()
keep = bytearray(own * 1000)
PATTERN = re.compile(rb"belljar-residue-([0-9a-f]{32})\1")

memory, found = os.open("/proc/self/mem", os.O_RDONLY), set()
for line in open("/proc/self/maps").readlines():
    start, end = (int(part, 16) for part in line.split()[0].split("-"))
    if not line.split()[1].startswith("rw") or end - start > 1 << 30:
        continue
    for offset in range(start, end, 4 << 20):
        try:
            data = os.pread(memory, min((4 << 20) + 128, end - offset), offset)
            found.update(match.group(0) for match in PATTERN.finditer(data))
        except OSError:
            continue
assert own in found, "the search does not even find our own mark"
foreign = {mark for mark in found if mark != own}
print(f"ESCAPED: marks of another run: {foreign}" if foreign else "CONTAINED: only our own mark")
