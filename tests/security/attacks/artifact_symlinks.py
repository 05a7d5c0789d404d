"""Leaves artifacts that are links: to secrets of the host, to endless devices, to the sandbox's /proc.

A host that follows them publishes its own files. Stopped by opening inside the sandbox, without following
links, and by checking that the descriptor is a regular file.
"""
# expect: artifacts
import os

ROOT = "/work/artifacts"
TARGETS = ["/etc/shadow", "/etc/passwd", "/proc/self/environ", "/proc/1/environ", "/dev/zero", "/dev/stdin"]
TARGETS += os.environ["HOST_CANARY_PATHS"].split(":")
TARGETS += ["../../../../../../etc/shadow", "/proc/self/root/etc/shadow", "loop", ""]

for number, target in enumerate(filter(None, TARGETS)):
    os.symlink(target, f"{ROOT}/link-{number}.txt")
os.symlink("loop", f"{ROOT}/loop")
print(f"CONTAINED: {len(os.listdir(ROOT))} links were planted")
