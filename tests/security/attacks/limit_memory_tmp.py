"""Keeps data in files of /tmp, which is memory too.

Stopped by the tmpfs size limit and by the memory cgroup, to which its pages are charged.
"""
# belljar: --memory 128M --timeout 60
# expect: ok|oom
import tempfile

MIB, GOAL = 1 << 20, 400
with tempfile.TemporaryFile(dir="/tmp", buffering=0) as file:  # Without a name: it goes when we are killed.
    try:
        for _ in range(GOAL):
            assert file.write(b"\x5a" * MIB) == MIB, "a short write: the file system is full"
        print(f"ESCAPED: {GOAL} MiB in /tmp under a limit of 128 MiB")
    except (OSError, AssertionError) as error:
        print(f"CONTAINED: {error}")
