"""Sends a head of a million opening brackets.

A recursive parser overflows its stack, which no error handler survives. Stopped by a bound on the head's
length and on the depth of JSON.
"""
# expect: crashed
import os
import select
import stat
import struct

head = b"[" * 1_000_000
frame = struct.pack("<II", len(head), 0) + head


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
        written[number] = 0
        while written[number] < len(frame) and select.select([], [number], [], 5)[1]:
            written[number] += os.write(number, frame[written[number] :])
    except OSError as error:
        written[number] = error.strerror
print(f"CONTAINED: deep JSON written to {written}" if written else "CONTAINED: no channel was inherited")
