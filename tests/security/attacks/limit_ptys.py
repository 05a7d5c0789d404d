"""Opens pseudo-terminals until it may not.

The machine has about 4096 for all: whoever takes most of them locks everybody out of new shells.
Stopped by the max= option of the sandbox's own devpts, or by having none.
"""
import os
import resource

GOAL = 2048
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
masters, reason = [], None
while len(masters) < GOAL:
    try:
        masters.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
    except OSError as error:
        reason = error.strerror
        break
for master in masters:
    os.close(master)
print(f"CONTAINED: {reason} at {len(masters)}" if reason else f"ESCAPED: {GOAL} of the machine's terminals")
