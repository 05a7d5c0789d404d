"""Keeps data in files of /dev/shm, the tmpfs that is often forgotten.

Stopped by the tmpfs size limit and by the memory cgroup, to which its pages are charged.
"""
# belljar: --memory 128M --timeout 60
# expect: ok|oom
import tempfile

MIB, GOAL = 1 << 20, 400
with tempfile.TemporaryFile(dir="/dev/shm", buffering=0) as file:
    try:
        for _ in range(GOAL):
            assert file.write(b"\x5a" * MIB) == MIB, "a short write: the file system is full"
        print(f"ESCAPED: {GOAL} MiB in /dev/shm under a limit of 128 MiB")
    except (OSError, AssertionError) as error:
        print(f"CONTAINED: {error}")
