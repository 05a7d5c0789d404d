"""Lowers its oom_score_adj, so that the kernel would sacrifice the host's processes first.

Lowering below what was there at the start needs a right only if a privileged process set the floor:
the value must be raised while still privileged.
"""
import errno

PATH = "/proc/self/oom_score_adj"
before = int(open(PATH).read())
holes, refused = [], set()
for value in (-1000, -1, 0, before - 1):
    if value >= before:
        continue
    try:
        with open(PATH, "w") as file:
            file.write(str(value))
        holes.append(value)
    except OSError as error:
        refused.add(errno.errorcode[error.errno])

if holes:
    print(f"ESCAPED: lowered from {before} to {holes}")
elif before <= 0:
    print(f"ESCAPED: it was never raised: {before}")
else:
    print(f"CONTAINED: stays at {before}, {sorted(refused)}")
