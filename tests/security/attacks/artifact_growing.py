"""Leaves an artifact that grows and shrinks while it is collected.

A size that was checked is no longer the size that is read. Stopped by a bound on bytes read, or by stopping
all processes first.
"""
# expect: artifacts
import os
import time

path = "/work/artifacts/growing.log"
with open(path, "wb") as file:
    file.write(b"start\n")
if os.fork() == 0:
    os.setsid()
    end = time.monotonic() + 60
    try:
        while time.monotonic() < end:
            with open(path, "ab", buffering=0) as file:
                for _ in range(64):
                    file.write(bytes(1 << 20))
            os.truncate(path, 0)
    finally:
        os._exit(0)
time.sleep(0.5)
print("CONTAINED: an artifact is growing and shrinking")
