"""Climbs from the working directory to another root than its own (CVE-2024-21626).

A process whose directory was set before pivot_root still stands on the host's tree. Stopped by changing
the directory afterwards.
"""
import os

root, start = os.stat("/"), os.readlink("/proc/self/cwd")
holes = []
if start.startswith("(unreachable)") or not start.startswith("/"):
    holes.append(f"the working directory is outside: {start}")
for origin in (".", start, "/session", "/tmp", "/proc/self/cwd", "/proc/self/root", "/proc/thread-self/root"):
    try:
        top = os.stat(os.path.join(origin, *[".."] * 64))
    except OSError:
        continue
    if not os.path.samestat(top, root):
        holes.append(f"{origin} climbs to another root")
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: from {start} every way up ends at /")
