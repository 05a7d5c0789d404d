"""Burns CPU in more processes than it has shares for, and measures how much it got.

Stopped by the cpu cgroup. Judged by the ratio of CPU time to wall time only, with half as much tolerance.
"""
# belljar: --cpus 0.5 --timeout 60
import os
import resource
import time

SHARE, TOLERANCE, SECONDS, PROCESSES = 0.5, 1.5, 4, 3
start = time.monotonic()
children = []
for _ in range(PROCESSES):
    child = os.fork()
    if child == 0:
        while time.monotonic() - start < SECONDS:
            pass
        os._exit(0)
    children.append(child)
for child in children:
    os.waitpid(child, 0)
wall = time.monotonic() - start
used = resource.getrusage(resource.RUSAGE_CHILDREN)
ratio = (used.ru_utime + used.ru_stime) / wall
verdict = "ESCAPED" if ratio > SHARE * TOLERANCE else "CONTAINED"
print(f"{verdict}: {ratio:.2f} CPUs of {SHARE} allowed")
