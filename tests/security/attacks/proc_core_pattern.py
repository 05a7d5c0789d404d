"""Writes the kernel's core_pattern: "|/path" there is a program the host runs as root at the next crash.

Writes back what it read, so nothing changes even where it succeeds. Stopped by a read-only /proc/sys.
"""
try:
    with open("/proc/sys/kernel/core_pattern", "r+b", buffering=0) as file:
        value = file.read()
        file.seek(0)
        file.write(value)
except OSError as error:
    print(f"CONTAINED: {error.strerror}")
else:
    print("ESCAPED: core_pattern can be written")
