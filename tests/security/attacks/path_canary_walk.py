"""Reads every small file outside /usr and /proc and looks for the canary by its hash.

Finds host directories that got in under a name nobody thought of. Stopped by a root of the sandbox's own.
"""
import hashlib
import os
import re
import time

wanted, deadline = os.environ["CANARY_SHA256"], time.monotonic() + 20
SKIP = {"/proc", "/usr", "/lib", "/lib64", "/bin", "/sbin", "/dev/pts"}
LIBRARIES = "site-packages"

holes, read = [], 0
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in SKIP and name != LIBRARIES]
    for path in [os.path.join(folder, name) for name in files]:
        try:
            if os.path.isfile(path) and os.path.getsize(path) < 1 << 16:
                data = open(path, "rb").read()
            else:
                continue
        except OSError:
            continue
        read += 1
        if any(hashlib.sha256(word).hexdigest() == wanted for word in re.findall(rb"[\w-]{8,}", data)):
            holes.append(path)
    if time.monotonic() > deadline or read > 20_000:
        break
print(f"ESCAPED: the canary is in {holes}" if holes else f"CONTAINED: {read} files without it")
