"""Sends half a frame and then falls silent for ever.

A reader that waits for the rest holds a thread, a lock or the whole server. Stopped by the run's own
timeout, which does not depend on the reader.
"""
# belljar: --timeout 5
# expect: timeout
import os
import stat
import struct
import time


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
        written[number] = os.write(number, struct.pack("<II", 1000, 1000) + b'{"op":')
    except OSError as error:
        written[number] = error.strerror
print(f"CONTAINED: half a frame written to {written or 'nothing: no channel'}", flush=True)
time.sleep(60)
