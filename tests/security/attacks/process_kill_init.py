"""Sends PID 1 every signal there is, SIGKILL and SIGSTOP first.

Code that stops its supervisor escapes its timeout and leaves the session without anyone to ask.
Stopped by the kernel (PID 1 ignores what it does not handle), by another uid, and by PID 1's own care.
"""
import os
import signal
import subprocess
import time

answers = set()
for number in [signal.SIGKILL, signal.SIGSTOP, *sorted(signal.valid_signals())]:
    try:
        os.kill(1, number)
        answers.add("sent")
    except OSError as error:
        answers.add(error.strerror)
time.sleep(1)
state = [line.split()[1] for line in open("/proc/1/status") if line.startswith("State:")][0]
works = subprocess.run(["true"]).returncode == 0  # PID 1 must still be there to reap and to report this.
print(f"CONTAINED: {sorted(answers)}" if works and state in "SRD" else f"ESCAPED: PID 1 is in state {state}")
