"""Replaces the artifacts folder itself by a link to /etc, or moves it away.

Everything below would then be the sandbox's /etc, or the host's if the host resolves it. Stopped by a mount
point, which cannot be replaced, or by a folder held by its descriptor.
"""
# expect: artifacts
import os

ROOT = "/work/artifacts"
with open(f"{ROOT}/honest.txt", "w") as file:
    file.write("honest\n")
outcome = []
for attempt in (
    lambda: os.rename(ROOT, "/work/moved"),
    lambda: os.rename(ROOT, "/tmp/moved"),
    lambda: os.symlink("/etc", ROOT),
    lambda: os.rename("/work", "/tmp/work"),
):
    try:
        attempt()
        outcome.append("done")
    except OSError as error:
        outcome.append(error.strerror)
print(f"CONTAINED: {outcome}")
