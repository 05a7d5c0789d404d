"""Checks which host uids stand behind this sandbox's uids.

If uid 1000 inside were uid 0 or a person's uid outside, every file-permission slip would hit the host.
Stopped by a block of host uids of the sandbox's own, above every host user (HOST_UID_MAX).
"""
import os

highest = int(os.environ["HOST_UID_MAX"])
lines = [tuple(map(int, line.split())) for line in open("/proc/self/uid_map")]
assert lines, "the uid map is empty: nothing was examined"

holes = [line for line in lines if line[1] <= highest]  # inside, outside, count
print(f"ESCAPED: host uids of real users are mapped: {holes}" if holes else f"CONTAINED: {lines}")
