"""Allocates and touches far more memory than it may have.

Unlimited, it would push the host into swapping and killing its own. Stopped by the memory cgroup.
"""
# belljar: --memory 128M --timeout 60
# expect: oom
MIB = 1 << 20
GOAL = 512

hoard = []
while len(hoard) < GOAL:
    hoard.append(bytearray(b"\x5a") * MIB)
print(f"ESCAPED: {GOAL} MiB under a limit of 128 MiB")
