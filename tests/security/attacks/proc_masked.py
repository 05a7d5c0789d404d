"""Looks whether what tells of the machine in /proc is the real thing or a cover.

The owner and mode of most of these files refuse us as well; this asks for the cover alone. Stopped by an empty file or
directory that is mounted on each.
"""
# only: native
import os

NAMES = """acpi asound driver kcore key-users keys kmsg kpagecgroup kpagecount kpageflags latency_stats pressure
sched_debug scsi sysrq-trigger timer_list""".split()

own = os.stat("/proc/self/status").st_dev
holes, covered = [], 0
for name in NAMES:
    try:
        found = os.lstat(f"/proc/{name}")
    except FileNotFoundError:
        continue  # This kernel does not have it.
    if found.st_dev == own:
        holes.append(name)
    covered += 1
assert covered, "none of them is there"
print(f"ESCAPED: not covered: {holes}" if holes else f"CONTAINED: {covered} are covered")
