"""Looks for a cgroup tree and raises its own limits in it, or leaves its group.

All limits end where the code can write them. Stopped by not mounting any cgroup tree.
"""
import os

mounts = [line.split()[4] for line in open("/proc/self/mountinfo") if " - cgroup" in line]
FILES = "cgroup.procs tasks memory.max memory.limit_in_bytes pids.max cpu.max release_agent".split()

holes, refused = [f"a cgroup tree is mounted at {point}" for point in mounts], set()
for root in {*mounts, "/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/memory", "/cgroup"}:
    for name in FILES:
        try:
            os.close(os.open(os.path.join(root, name), os.O_WRONLY))
            holes.append(os.path.join(root, name))
        except OSError as error:
            refused.add(error.strerror)
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted(refused)}")
