"""Checks whether this process still belongs to a process group or session led from outside.

A kernel forked by a zygote keeps its group and session unless it leaves them: kill(0, SIGKILL) then hits
processes outside the PID namespace, and /dev/tty is the host's terminal. Stopped by setsid at entry.
"""
import os

holes = []
if os.getpgid(0) == 0:
    holes.append("the process group is led from outside (kill(0, ...) reaches it)")
if os.getsid(0) == 0:
    holes.append("the session is led from outside")
try:
    terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    holes.append(f"there is a controlling terminal: {os.ttyname(terminal)}")
except OSError as error:
    reason = error.strerror
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: own group and session; /dev/tty: {reason}")
