"""Kills every process it may signal, except itself: kill(-1, SIGKILL).

Must reach nothing outside the PID namespace, and nothing inside on which the sandbox depends.
Stopped by the PID namespace. That the run still ends in order is the other half of the test.
"""
import os
import signal
import time

try:
    os.kill(-1, signal.SIGKILL)
    answer = "sent"
except OSError as error:
    answer = error.strerror
time.sleep(1)
alive = [name for name in os.listdir("/proc") if name.isdigit()]
assert "1" in alive, "PID 1 is gone"
print(f"CONTAINED: {answer}; PID 1 and this process live")
