"""Announces frames of four gigabytes and sends a part of them.

A reader that allocates what is announced dies of one header. Stopped by a bound on both lengths.
"""
# belljar: --timeout 20
# expect: crashed
import os
import stat
import struct

HEADERS = [(0xFFFFFFFF, 0xFFFFFFFF), (0x7FFFFFFF, 0), (2, 0xFFFFFFFF), (0, 0), (0, 0xFFFFFFF0)]
payload = b"".join(struct.pack("<II", *lengths) + b"{}" for lengths in HEADERS) + b"x" * (1 << 20)


def channels():
    """The inherited sockets, and the pipes that are not our input and output."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            mode = os.fstat(number).st_mode
        except OSError:
            continue  # The listing's own descriptor, closed by now.
        if stat.S_ISSOCK(mode) or (stat.S_ISFIFO(mode) and number > 2):
            yield number


written = {}
for number in channels():
    try:
        os.set_blocking(number, False)
        written[number] = os.write(number, payload)
    except OSError as error:
        written[number] = error.strerror
print(f"CONTAINED: 4 GiB announced to {written}" if written else "CONTAINED: no channel was inherited")
