"""Forks until it may not, counts the children, and sees whether the kernel recovers.

Unlimited forking takes a host down in seconds. Stopped by the pids cgroup.
"""
# belljar: --pids 64 --timeout 60
import errno
import os
import signal
import time

LIMIT, GOAL = 64 + 8, 200  # A few more for the sandbox's own processes.
children, reason = [], None
while len(children) < GOAL:
    try:
        child = os.fork()
    except OSError as error:
        reason = errno.errorcode[error.errno]
        break
    if child == 0:
        time.sleep(60)
        os._exit(0)
    children.append(child)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

if len(children) > LIMIT or reason is None:
    print(f"ESCAPED: {len(children)} children under a limit of {LIMIT}")
else:
    again = os.fork()  # Raises, and fails the test, if the sandbox did not recover.
    if again == 0:
        os._exit(0)
    os.waitpid(again, 0)
    print(f"CONTAINED: {reason} after {len(children)} children, and it recovered")
