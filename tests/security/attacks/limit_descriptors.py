"""Opens files until it may not.

The kernel's table of open files is shared by all. Stopped by RLIMIT_NOFILE and by the memory cgroup.
"""
# expect: ok|oom
import os
import resource

GOAL = 8192  # Twice what a sandbox may have open.
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
opened = []
try:
    while len(opened) < GOAL:
        opened.append(os.open("/dev/null", os.O_RDONLY))
    reason = None
except OSError as error:
    reason = error.strerror
for number in opened:
    os.close(number)
print(f"CONTAINED: {reason} at {len(opened)}" if reason else f"ESCAPED: {len(opened)} files are open")
