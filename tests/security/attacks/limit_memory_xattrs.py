"""Stores data in extended attributes of files in /tmp, which a tmpfs keeps outside its size limit.

Stopped by the memory cgroup and, where the kernel has it, by the inode limit.
"""
# belljar: --memory 128M --timeout 60
# expect: ok|oom
import os
import tempfile

GOAL, EACH = 400 << 20, 60_000
folder, stored = tempfile.mkdtemp(dir="/tmp"), 0
try:
    while stored < GOAL:
        path = os.path.join(folder, str(stored))
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        for number in range(16):
            os.setxattr(path, f"user.{number}", bytes(EACH))
            stored += EACH
    print(f"ESCAPED: {stored >> 20} MiB in attributes under a limit of 128 MiB")
except OSError as error:
    print(f"CONTAINED: {error.strerror} after {stored >> 20} MiB")
