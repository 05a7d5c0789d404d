"""Reads the host's directory layout out of the mount table.

overlayfs shows its lower and upper directories to whoever reads mountinfo: a map for the next attack.
Stopped by assembling overlays through descriptors or short relative names, or by not using them.
"""
import re

table = open("/proc/self/mountinfo").read()
assert table, "the mount table is empty: nothing was examined"
paths = [p for p in re.findall(r"(?:lowerdir|upperdir|workdir)\+?=([^,\s]+)", table) if p.startswith("/")]
print(f"ESCAPED: host paths {paths[:3]}" if paths else "CONTAINED: no overlay option names an absolute path")
