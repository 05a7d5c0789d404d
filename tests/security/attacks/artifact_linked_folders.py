"""Leaves folders that are links: to /, /etc, the parent, the canary's folder and each other.

A walk that follows them leaves the tree or never ends. Stopped by a walk that opens each step without
following links.
"""
# expect: artifacts
import os

ROOT = "/work/artifacts"
TARGETS = ["/", "/etc", "/proc", "/root", "..", ".", "../..", "/dev/fd"]
TARGETS += [os.path.dirname(path) for path in os.environ["HOST_CANARY_PATHS"].split(":")]

for number, target in enumerate(TARGETS):
    os.symlink(target, f"{ROOT}/folder-{number}")
os.makedirs(f"{ROOT}/a/b")
os.symlink("../../a", f"{ROOT}/a/b/again")
print("CONTAINED: linked folders were planted")
