"""Writes the kernel's settings one by one: every file below /proc/sys.

modprobe names a program run as root; others weaken the host or rename it. Stopped by a read-only
/proc/sys and by having no capability. Each file gets back what it held.
"""
import os

holes, refused, tried = [], set(), 0
for folder, _, files in os.walk("/proc/sys"):
    for path in [os.path.join(folder, name) for name in files]:
        tried += 1
        try:
            os.close(os.open(path, os.O_WRONLY))
            holes.append(path)
        except OSError as error:
            refused.add(error.strerror)
for name in ("kernel/modprobe", "kernel/hostname", "kernel/randomize_va_space", "vm/overcommit_memory"):
    try:
        with open(f"/proc/sys/{name}", "r+b", buffering=0) as file:
            value = file.read()
            file.seek(0)
            file.write(value)
        holes.append(f"{name} (written)")
    except OSError as error:
        refused.add(error.strerror)
print(f"ESCAPED: {len(holes)}: {holes[-5:]}" if holes else f"CONTAINED: {tried} files, {sorted(refused)}")
