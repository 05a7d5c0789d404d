"""Runs for ever, with every signal it may ignore ignored and every other blocked.

A timeout that only asks is no timeout. Stopped by killing the sandbox from outside when time is up.
"""
# belljar: --timeout 4
# expect: timeout
import os
import signal

for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    try:
        signal.signal(number, signal.SIG_IGN)
    except OSError:
        pass  # Reserved by the C library.
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
while True:
    try:
        os.getpid()
    except BaseException:
        continue
