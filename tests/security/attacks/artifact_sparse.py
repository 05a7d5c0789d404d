"""Leaves an artifact of one terabyte which takes no space, where the file system allows it.

Copied or hashed byte by byte it fills the host's disk or its time. Stopped by a bound on size before any
byte is read, and by telling the result that the file was left out.
"""
# expect: artifacts
import os
import signal

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path, size = "/work/artifacts/sparse.bin", 1 << 40
with open(path, "wb") as file:
    while True:
        try:
            file.truncate(size)
            break
        except OSError:
            size //= 2  # Larger than the file system takes.
print(f"CONTAINED: a sparse file of {os.path.getsize(path) >> 20} MiB was left")
