"""Signals and looks up the belljar process on the host by its pid (HOST_PID).

Stopped by the PID namespace: that number means nothing, or somebody else, in here.
"""
import os

pid = int(os.environ["HOST_PID"])
mine = {int(name) for name in os.listdir("/proc") if name.isdigit()}
try:
    os.kill(pid, 0)
    outcome = "exists"
except OSError as error:
    outcome = error.strerror

if outcome == "exists" and pid not in mine:
    print(f"ESCAPED: a process outside /proc can be signalled: {pid}")
elif pid in mine and "belljar" in open(f"/proc/{pid}/comm").read() and pid != 1:
    print(f"ESCAPED: the host's belljar process is visible as {pid}")
else:
    print(f"CONTAINED: {outcome}")
