"""Opens the memory of PID 1, for reading and for writing.

Writing there means running code as the supervisor. Stopped by PID 1 not being dumpable.
"""
import os

holes, refused = [], set()
for mode in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
    try:
        os.close(os.open("/proc/1/mem", mode))
        holes.append(mode)
    except OSError as error:
        refused.add(error.strerror)
print(f"ESCAPED: /proc/1/mem opens in modes {holes}" if holes else f"CONTAINED: {sorted(refused)}")
