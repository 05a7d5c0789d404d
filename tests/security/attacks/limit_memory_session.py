"""Keeps data in files of /session, which is a tmpfs when SESSION_STORAGE is TMPFS.

Stopped by the tmpfs size limit and by the memory cgroup. On disk, page cache is given back and a quota
counts instead: see limit_disk.py.
"""
# belljar: --memory 128M --timeout 60
# expect: ok|oom
import os
import tempfile

MIB, GOAL = 1 << 20, 400
device = os.stat("/session").st_dev
kinds = {line.split()[2]: line.split(" - ")[1].split()[0] for line in open("/proc/self/mountinfo")}
kind = kinds.get(f"{os.major(device)}:{os.minor(device)}")

with tempfile.TemporaryFile(dir="/session", buffering=0) as file:
    try:
        for _ in range(GOAL):
            assert file.write(b"\x5a" * MIB) == MIB, "a short write: the file system is full"
        if kind in ("tmpfs", "ramfs"):
            print(f"ESCAPED: {GOAL} MiB in a {kind} at /session under a limit of 128 MiB")
        else:
            print(f"CONTAINED: /session is on disk ({kind})")
    except (OSError, AssertionError) as error:
        print(f"CONTAINED: {error}")
