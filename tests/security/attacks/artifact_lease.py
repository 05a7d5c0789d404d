"""Holds a write lease on an artifact: whoever opens it waits, up to 45 seconds each.

The lease holder decides how long a collector hangs. Stopped by opening with O_NONBLOCK, or by stopping all
processes first.
"""
# expect: artifacts
import fcntl
import os
import signal
import time

refused = []
for number in range(8):
    path = f"/work/artifacts/leased-{number}.txt"
    with open(path, "w") as file:
        file.write("leased\n")
    ready, done = os.pipe()
    if os.fork() == 0:
        signal.signal(signal.SIGIO, signal.SIG_IGN)  # The kernel's request to give the lease back.
        try:
            descriptor = os.open(path, os.O_RDWR)
            fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            os.write(done, b"leased")
            time.sleep(120)
        except OSError as error:
            os.write(done, error.strerror.encode())
        finally:
            os._exit(0)
    refused.append(os.read(ready, 100).decode())
print(f"CONTAINED: eight files: {sorted(set(refused))}")
