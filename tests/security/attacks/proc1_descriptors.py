"""Lists and reopens the descriptors of PID 1, among them its socket to the host.

Stopped by PID 1 not being dumpable.
"""
import os

holes, refused = [], set()
for name in ("fd", "fdinfo", "map_files"):
    try:
        holes.append(f"{name}: {os.listdir(f'/proc/1/{name}')}")
    except OSError as error:
        refused.add(error.strerror)
for number in range(64):  # A closed directory can still be entered by those who know the names.
    try:
        os.close(os.open(f"/proc/1/fd/{number}", os.O_RDONLY | os.O_NONBLOCK))
        holes.append(f"reopened {number}")
    except OSError as error:
        refused.add(error.strerror)
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted(refused)}")
