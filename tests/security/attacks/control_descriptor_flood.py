"""Sends thousands of descriptors over every inherited UNIX socket, and odd ones among them.

Each that arrives takes a slot in the host's table; a directory or a device in place of a file confuses who
reads it. Stopped by a receiver that expects a number of them, checks and closes.
"""
# expect: crashed
import array
import os
import socket
import stat

odd = [os.open("/", os.O_RDONLY), os.open("/dev/zero", os.O_RDONLY), *os.pipe(), os.memfd_create("x")]
batch = array.array("i", (odd * 51)[:253])  # The most that one message may carry.


def channels():
    """The inherited sockets."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            mode = os.fstat(number).st_mode
        except OSError:
            continue  # The listing's own descriptor, closed by now.
        if stat.S_ISSOCK(mode):
            yield number


sent = {}
for number in channels():
    try:
        with socket.socket(fileno=os.dup(number)) as channel:
            channel.setblocking(False)
            sent[number] = 0
            for _ in range(100):
                channel.sendmsg([b"\0"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, batch)])
                sent[number] += len(batch)
    except OSError as error:
        sent[f"{number} ended"] = error.strerror
print(f"CONTAINED: descriptors sent: {sent}" if sent else "CONTAINED: no channel was inherited")
