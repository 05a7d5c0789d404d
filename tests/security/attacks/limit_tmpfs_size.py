"""Fills /tmp with far more than it may hold, and must be told that it is full, before anything is killed.

Stopped by the size of the tmpfs, which is three quarters of the memory. Where only the memory limit were left, the
sandbox would be killed, which is not what is expected here.
"""
# belljar: --memory 128M --timeout 60
import errno
import tempfile

MIB, GOAL = 1 << 20, 120
with tempfile.TemporaryFile(dir="/tmp", buffering=0) as file:
    written = 0
    try:
        while written < GOAL:
            assert file.write(b"\x5a" * MIB) == MIB, "a short write: the file system is full"
            written += 1
        print(f"ESCAPED: {written} MiB in /tmp under a limit of 96 MiB")
    except AssertionError as error:
        print(f"CONTAINED: {error}, after {written} MiB")
    except OSError as error:
        full = error.errno == errno.ENOSPC
        print(f"{'CONTAINED' if full else 'ESCAPED'}: {error.strerror} after {written} MiB")
