"""Writes garbage into every inherited socket and pipe, one of which may speak to the supervisor.

A parser on the other side meets it with more rights than ours. Stopped by a parser that ends the run in
order on the first bad byte.
"""
# expect: crashed
import os
import stat


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
        written[number] = os.write(number, os.urandom(1 << 16))
    except OSError as error:
        written[number] = error.strerror
print(f"CONTAINED: garbage written to {written}" if written else "CONTAINED: no channel was inherited")
