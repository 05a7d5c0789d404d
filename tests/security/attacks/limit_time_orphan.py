"""Leaves a daemon behind that holds the output open, and ends.

A runtime that waits for end-of-file would wait for ever, and the daemon would live on unwatched. Stopped
by ending the run with its main program and killing what remains.
"""
# belljar: --timeout 30
import os
import signal
import time

if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        time.sleep(300)
    os._exit(0)
print("CONTAINED: the harness sees whether this run ends, and what outlives it")
