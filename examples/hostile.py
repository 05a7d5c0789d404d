"""Things that code in a sandbox must not be able to do."""

import ctypes
import os
import socket
import subprocess


def attempt(what, action):
    try:
        print(f"{what:<42} {action()}")
    except BaseException as refusal:
        print(f"{what:<42} refused: {refusal}")


attempt("read the host's passwords", lambda: open("/etc/shadow").read())
attempt("read the home of root", lambda: os.listdir("/root") or "it is empty")
attempt("write to the system", lambda: open("/usr/bin/owned", "w"))
attempt("reach the network", lambda: socket.create_connection(("192.0.2.1", 80), timeout=2))
attempt("see other processes", lambda: sorted(p for p in os.listdir("/proc") if p.isdigit()))
attempt("look into PID 1", lambda: open("/proc/1/environ").read())
attempt("become root", lambda: os.setuid(0))
attempt("mount something", lambda: subprocess.check_output("mount -t tmpfs x /tmp 2>&1", shell=True))
attempt("make a new user namespace", lambda: ctypes.CDLL(None).unshare(0x10000000) and os.strerror(1))
children = []
try:
    while True:
        children.append(subprocess.Popen(["sleep", "60"]))
except OSError as refusal:
    print(f"{'start processes without end':<42} refused after {len(children)}: {refusal}")
for child in children:
    child.kill()
print("use up all memory: watch")
hog = [bytearray(32 << 20) for _ in range(100)]
