"""Makes empty files until it is told that there is no room, which must be long before the memory is used up.

Stopped by the number of inodes of the tmpfs: one for every 4 KiB of its size.
"""
# belljar: --memory 128M --timeout 60
import errno
import os
import tempfile

GOAL = 50_000
folder, made = tempfile.mkdtemp(dir="/tmp"), 0
try:
    while made < GOAL:
        os.close(os.open(f"{folder}/{made}", os.O_CREAT | os.O_WRONLY))
        made += 1
    print(f"ESCAPED: {made} files in /tmp under a limit of 24576")
except OSError as error:
    full = error.errno == errno.ENOSPC
    print(f"{'CONTAINED' if full else 'ESCAPED'}: {error.strerror} after {made} files")
