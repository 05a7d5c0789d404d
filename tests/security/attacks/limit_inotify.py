"""Takes inotify instances and watches until it may not.

They are counted per host user: sandboxes that share one starve each other and the person's editor.
Stopped by the kernel's limit, counted for this sandbox's own uid.
"""
import ctypes
import errno
import os

GOAL = 20_000
libc = ctypes.CDLL(None, use_errno=True)
instances = []
while len(instances) < GOAL:
    instance = libc.inotify_init1(0)
    if instance < 0:
        break
    instances.append(instance)
reason = errno.errorcode[ctypes.get_errno()] if len(instances) < GOAL else None
for instance in instances:
    os.close(instance)
print(f"CONTAINED: {reason} at {len(instances)}" if reason else f"ESCAPED: {len(instances)} instances")
