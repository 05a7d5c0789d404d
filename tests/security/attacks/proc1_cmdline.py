"""Looks for secrets in the command lines in /proc, which everybody may read.

Stopped by passing secrets in no argument list.
"""
import hashlib
import os
import re

wanted, seen = os.environ["CANARY_SHA256"], {}
for pid in [name for name in os.listdir("/proc") if name.isdigit()]:
    seen[pid] = open(f"/proc/{pid}/cmdline", "rb").read() + open(f"/proc/{pid}/comm", "rb").read()
assert "1" in seen, "PID 1 is not visible"
words = {word for data in seen.values() for word in re.findall(rb"[\w-]{8,}", data)}
if any(hashlib.sha256(word).hexdigest() == wanted for word in words):
    print("ESCAPED: the canary stands in a command line")
else:
    print(f"CONTAINED: {len(seen)} command lines without the canary")
