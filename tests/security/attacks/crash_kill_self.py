"""Kills itself with SIGKILL, as the kernel does when memory runs out.

It must be told as a crash and not as "oom": the cgroup knows the difference.
"""
# expect: crashed
import os
import signal

os.kill(os.getpid(), signal.SIGKILL)
