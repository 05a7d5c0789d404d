"""Parks data in the buffers of sockets that nobody reads.

Socket buffers are kernel memory. Stopped by the memory cgroup, and by the number of open files.
"""
# belljar: --memory 128M --timeout 60
# expect: ok|oom
import resource
import socket

GOAL = 400 << 20
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
pairs, parked = [], 0
try:
    while parked < GOAL:
        pair = socket.socketpair()
        pairs.append(pair)
        for end in pair:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            end.setblocking(False)
            try:
                while True:
                    parked += end.send(bytes(1 << 16))
            except BlockingIOError:
                continue
    print(f"ESCAPED: {parked >> 20} MiB in socket buffers under a limit of 128 MiB")
except OSError as error:
    print(f"CONTAINED: {error.strerror} after {parked >> 20} MiB")
