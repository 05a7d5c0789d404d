"""Looks for files that another sandbox left in the writable places, and leaves some itself.

Run twice or more: a second run must not see the first one's. Stopped by fresh tmpfs mounts per sandbox.
"""
# repeat: 2
import glob
import uuid

PLACES = ("/tmp", "/dev/shm", "/session", "/var/tmp", "/work/artifacts", "/run", "/dev/mqueue")
holes = [path for place in PLACES for path in glob.glob(f"{place}/belljar-residue-*")]
left = 0
for place in PLACES:
    try:
        with open(f"{place}/belljar-residue-{uuid.uuid4().hex}", "w") as file:
            file.write("left by an earlier sandbox")
        left += 1
    except OSError:
        continue
assert left, "no place could be written, so an earlier run left nothing either"
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: nothing found, left {left} marks")
