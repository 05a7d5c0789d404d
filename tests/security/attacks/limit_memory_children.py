"""Spreads memory over many children, each of which stays below the limit.

Limits per process (RLIMIT_AS) miss this. Stopped by the memory cgroup, which counts the whole sandbox.
"""
# belljar: --memory 128M --timeout 60
# expect: ok|oom
import os
import signal
import time

MIB, CHILDREN, EACH = 1 << 20, 6, 64

children = []
for _ in range(CHILDREN):
    ready, done = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            open("/proc/self/oom_score_adj", "w").write("1000")  # Rather the children than their parent.
            hoard = bytearray(b"\x5a") * (EACH * MIB)
            os.write(done, b"!")
            time.sleep(60)
        finally:
            os._exit(1)
    os.close(done)
    children.append(child)
    os.read(ready, 1)  # Ends when the child has its memory, or is dead.

alive = [child for child in children if os.waitpid(child, os.WNOHANG) == (0, 0)]
for child in alive:
    os.kill(child, signal.SIGKILL)
if len(alive) == CHILDREN:
    print(f"ESCAPED: {CHILDREN * EACH} MiB in {CHILDREN} children under a limit of 128 MiB")
else:
    print(f"CONTAINED: {CHILDREN - len(alive)} of {CHILDREN} children were killed")
