"""Stops every process it may signal, then itself: kill(-1, SIGSTOP).

A supervisor that can be frozen from inside would never notice the timeout. Stopped by the PID namespace;
the host's own clock must end the run.
"""
# belljar: --timeout 5
# expect: timeout
import os
import signal

try:
    os.kill(-1, signal.SIGSTOP)
except ProcessLookupError:
    pass  # Nobody else to stop.
os.kill(os.getpid(), signal.SIGSTOP)
