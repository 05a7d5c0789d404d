"""Crashes a child and looks for its core dump.

A dump fills the host's disk and holds memory; a host core_pattern with a pipe even starts a program as
root outside. Stopped by RLIMIT_CORE 0, soft and hard.
"""
import glob
import os
import resource
import signal

try:
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    raised = True
except (ValueError, PermissionError):
    raised = False

child = os.fork()
if child == 0:
    signal.signal(signal.SIGABRT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGABRT)
    os._exit(0)
_, status = os.waitpid(child, 0)
assert os.WIFSIGNALED(status), "the child did not crash"
files = glob.glob("core*") + glob.glob("/tmp/core*") + glob.glob("/session/core*")

if raised or os.WCOREDUMP(status) or files or resource.getrlimit(resource.RLIMIT_CORE) != (0, 0):
    print(f"ESCAPED: limit raised: {raised}, dumped: {os.WCOREDUMP(status)}, files: {files}")
else:
    print("CONTAINED: the limit is 0 and nothing was dumped")
