"""Checks that this sandbox has one block of ids, and not the one of the process that makes sandboxes.

With more ids, or with those of others, files, quotas and signals of other sandboxes would be its own. Stopped by a
user namespace that maps one block of 4096 ids, which is not the first.
"""
# only: native
BLOCK = 4096
holes = []
for name in ("uid_map", "gid_map"):
    lines = [tuple(map(int, line.split())) for line in open(f"/proc/self/{name}")]
    assert lines, f"{name} is empty: nothing was examined"
    for inside, outside, count in lines:
        if count > BLOCK:
            holes.append(f"{name}: {count} ids are mapped")
        if outside < BLOCK and count > 1:
            holes.append(f"{name}: the ids are those of the spawner")
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {lines}")
