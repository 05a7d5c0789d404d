"""Creates empty files until the tmpfs is out of inodes.

They cost kernel memory but no size. Stopped by nr_inodes, or by the memory cgroup.
"""
# belljar: --memory 256M --timeout 90
# expect: ok|oom
import os
import tempfile

GOAL = 600_000
folder, made = tempfile.mkdtemp(dir="/tmp"), 0
try:
    while made < GOAL:
        os.close(os.open(f"{folder}/{made}", os.O_CREAT | os.O_WRONLY))
        made += 1
    print(f"ESCAPED: {made} files in /tmp")
except OSError as error:
    print(f"CONTAINED: {error.strerror} after {made} files")
