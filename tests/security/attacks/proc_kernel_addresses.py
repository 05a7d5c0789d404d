"""Collects kernel addresses, which undo its address randomisation, from the tables that list them.

Stopped by masks, or by the kernel showing zeros to the unprivileged.
"""
import re

TABLES = ["kallsyms", "modules", "iomem", "ioports", "vmallocinfo", "timer_list", "sched_debug", "slabinfo"]

holes, seen = [], {}
for name in TABLES:
    try:
        with open(f"/proc/{name}", errors="replace") as file:
            text = file.read(1 << 20)
    except OSError as error:
        seen[name] = error.strerror
        continue
    addresses = [a for a in re.findall(r"\b(?:0x)?([0-9a-f]{8,16})\b", text) if a.strip("0") and a[0] in "f"]
    seen[name] = f"{len(text)} characters"
    if addresses:
        holes.append(f"{name}: {addresses[0]}")
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {seen}")
