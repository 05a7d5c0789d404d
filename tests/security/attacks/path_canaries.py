"""Reads the harness's canary files, in /tmp and in the home directory of the host.

They stand for every file of the person who runs Belljar. Stopped by a root of the sandbox's own.
"""
import hashlib
import os
import re

wanted = os.environ["CANARY_SHA256"]
holes, refused = [], set()
for path in os.environ["HOST_CANARY_PATHS"].split(":"):
    for way in ("", "/proc/self/root", "/proc/1/root", f"{os.getcwd()}/../../../.."):
        variant = way + path
        try:
            data = open(variant, "rb").read(1 << 16)
        except OSError as error:
            refused.add(error.strerror)
            continue
        known = any(hashlib.sha256(word).hexdigest() == wanted for word in re.findall(rb"[\w-]{8,}", data))
        holes.append(f"{variant} ({'the canary' if known else 'other content'})")
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted(refused)}")
