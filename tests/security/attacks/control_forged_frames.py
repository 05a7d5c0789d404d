"""Forges frames of the control protocol: a finished run, files of the host, other people's sessions.

The frame is u32 head length, u32 body length, a JSON head, a body. Code may at most lie about its own run.
Stopped by the host, which trusts no path, name or number that comes from inside.
"""
# expect: crashed
import json
import os
import stat
import struct

HEADS = [
    {"op": "done", "status": "ok", "exit_code": 0},
    {"op": "done", "exec_id": "../../../etc/passwd", "status": "ok"},
    {"op": "done", "artifacts": [{"path": "/etc/shadow", "name": "../../../../tmp/pwned", "size": -1}]},
    {"op": "artifact", "path": "/etc/shadow", "size": 1 << 63},
    {"op": "file", "path": "../../../../etc/shadow"},
    {"op": "exec", "session": "another", "command": ["id"]},
    {"op": "stdout", "exec_id": None, "data": {"$ref": "x"}},
    {"op": ["done"], "op2": {"op": "done"}},
    {},
]
frames = b""
for head in HEADS:
    data = json.dumps(head).encode()
    frames += struct.pack("<II", len(data), 4) + data + b"body"


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
        written[number] = os.write(number, frames)
    except OSError as error:
        written[number] = error.strerror
print(f"CONTAINED: forged frames written to {written}" if written else "CONTAINED: no channel was inherited")
