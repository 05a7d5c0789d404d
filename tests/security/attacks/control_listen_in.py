"""Reads what is waiting in every inherited socket and pipe, descriptors included.

The control channel may carry other runs' code, secrets, or descriptors of host files. Stopped by sending
through it only what this run's code may know.
"""
# expect: ok|timeout
# belljar: --timeout 5
import hashlib
import os
import re
import socket
import stat


def channels():
    """The inherited sockets."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            mode = os.fstat(number).st_mode
        except OSError:
            continue  # The listing's own descriptor, closed by now.
        if stat.S_ISSOCK(mode):
            yield number


wanted, holes, heard = os.environ["CANARY_SHA256"], [], {}
for number in channels():
    try:
        with socket.socket(fileno=os.dup(number)) as channel:
            data, descriptors, _, _ = socket.recv_fds(channel, 1 << 20, 64, socket.MSG_DONTWAIT)
        heard[number] = len(data)
        if any(hashlib.sha256(word).hexdigest() == wanted for word in re.findall(rb"[\w-]{8,}", data)):
            holes.append("the canary")
        holes += [os.readlink(f"/proc/self/fd/{descriptor}") for descriptor in descriptors]
    except OSError as error:
        heard[number] = error.strerror
print(f"ESCAPED: heard {holes}" if holes else f"CONTAINED: {heard or 'no channel was inherited'}")
