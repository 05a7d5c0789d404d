"""Makes sockets that take as long to close as their owner likes (SO_LINGER), and hands one to another socket.

Whoever closes the last descriptor waits, be it the server or a worker of the kernel that serves the whole
machine. Stopped by seccomp, also where the kernel cuts arguments to 32 bits; accepted sockets inherit nothing.
"""
import ctypes
import errno
import os
import socket
import struct

SETSOCKOPT = {"x86_64": 54, "aarch64": 208}[os.uname().machine]
HIGH, LINGER = 1 << 32, struct.pack("ii", 1, 3600)
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def lingers(made):
    return struct.unpack("ii", made.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER, 8)) != (0, 0)


def attempt(made, level, option):
    words = [ctypes.c_long(word) for word in (made.fileno(), level, option)]
    if libc.syscall(ctypes.c_long(SETSOCKOPT), *words, LINGER, ctypes.c_long(len(LINGER))) < 0:
        return errno.errorcode[ctypes.get_errno()]
    return "allowed"


answers, holes = {}, []
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_UNIX, None)):
    made = socket.socket(family, socket.SOCK_STREAM)
    for high_level in (0, HIGH):
        for high_option in (0, HIGH):
            level, option = high_level | socket.SOL_SOCKET, high_option | socket.SO_LINGER
            answers[f"{family.name} {level:#x} {option:#x}"] = attempt(made, level, option)
    if lingers(made):
        holes.append(f"{family.name} lingers")
    if address is None:
        continue
    try:
        made.bind((address, 0))
    except OSError:
        continue  # No IPv6 here.
    made.listen()
    client = socket.create_connection(made.getsockname()[:2])
    accepted = made.accept()[0]
    if lingers(accepted) or lingers(client):
        holes.append(f"{family.name} lingers when connected")
    # What programs do need is still there.
    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    accepted.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
holes += [f"{what}: {answer}" for what, answer in answers.items() if answer != "EPERM"]
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {sorted(set(answers.values()))}")
