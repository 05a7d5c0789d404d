"""Looks for the server's secret in every environment it can read.

Secrets live in the environment of the belljar process. Stopped by starting sandboxes with an empty one.
"""
import hashlib
import os
import re

wanted = os.environ["CANARY_SHA256"]
blocks = {"os.environ": "\0".join(f"{k}={v}" for k, v in os.environ.items()).encode()}
for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
    for path in (f"/proc/{pid}/environ", f"/proc/{pid}/task/{pid}/environ"):
        try:
            blocks[path] = open(path, "rb").read()
        except OSError:
            continue

holes = []
for path, block in blocks.items():
    known = any(hashlib.sha256(word).hexdigest() == wanted for word in re.findall(rb"[\w-]{8,}", block))
    if known or b"BELLJAR_TEST_SECRET" in block:
        holes.append(path)
assert f"/proc/{os.getpid()}/environ" in blocks, "not even our own is readable"
print(f"ESCAPED: the secret is in {holes}" if holes else f"CONTAINED: not in {list(blocks)}")
