"""Closes every descriptor, its own output included, and goes on working for a while.

A supervisor that takes a closed channel for a finished run would leave the code running unwatched. Stopped
by watching the process, not the channel.
"""
# belljar: --timeout 5
# expect: crashed
import os
import time

os.closerange(0, 4096)
time.sleep(60)
