"""Reads the host's cgroup paths from /proc/self/cgroup.

They give away session names and the layout of the host's tree. Stopped by a cgroup namespace.
"""
TELLING = ("..", "belljar", ".slice", ".scope", "docker", "kubepods")
paths = [line.strip().split(":", 2)[2] for line in open("/proc/self/cgroup")]
holes = [path for path in paths if any(word in path for word in TELLING)]
assert paths, "nothing is listed"
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {sorted(set(paths))}")
