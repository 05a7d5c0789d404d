"""Reads PID 1's memory map and what else tells addresses: maps, auxv, stack, syscall, pagemap.

They undo address randomisation for the one process worth attacking. Stopped by PID 1 not being dumpable.
"""
NAMES = "maps smaps smaps_rollup numa_maps auxv stack syscall pagemap io personality".split()

holes, refused = [], set()
for name in NAMES:
    try:
        with open(f"/proc/1/{name}", "rb") as file:
            data = file.read(64)
    except FileNotFoundError:
        continue  # This kernel has no such file.
    except OSError as error:
        refused.add(error.strerror)
    else:
        if data:
            holes.append(f"{name}: {data[:24]!r}")
assert holes or refused, "nothing was tried"
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted(refused)}")
