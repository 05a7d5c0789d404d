"""Looks for writable shared mappings in its own memory that it never made.

A page the zygote mapped shared stays shared between all its children: a channel between sandboxes, and a
way to change what the others read. Stopped by a zygote without shared writable mappings.
"""
mappings = [line.split(None, 5) for line in open("/proc/self/maps")]
holes = [fields[-1].strip() for fields in mappings if fields[1][1] == "w" and fields[1][3] == "s"]
assert len(mappings) > 10, "the map is not ours"
print(f"ESCAPED: {len(holes)} shared: {holes[:5]}" if holes else f"CONTAINED: {len(mappings)} mappings, none")
