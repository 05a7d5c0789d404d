"""Keeps data in a memfd, a file on a kernel-internal tmpfs without any size limit.

Stopped by the memory cgroup.
"""
# belljar: --memory 128M --timeout 60
# expect: ok|oom
import os

MIB, GOAL = 1 << 20, 400
try:
    file = os.memfd_create("hoard")
    for _ in range(GOAL):
        os.write(file, b"\x5a" * MIB)
    print(f"ESCAPED: {GOAL} MiB in a memfd under a limit of 128 MiB")
except OSError as error:
    print(f"CONTAINED: {error.strerror}")
