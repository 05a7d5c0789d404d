"""Reads the environment of PID 1, where a careless launcher leaves the server's secrets.

Stopped by PID 1 not being dumpable and having an empty environment.
"""
import hashlib
import os
import re

try:
    data = open("/proc/1/environ", "rb").read()
except OSError as error:
    print(f"CONTAINED: {error.strerror}")
else:
    words = re.findall(rb"[\w-]{8,}", data)
    canary = any(hashlib.sha256(word).hexdigest() == os.environ["CANARY_SHA256"] for word in words)
    if data.strip(b"\0"):
        print(f"ESCAPED: {len(data)} bytes of environment, canary among them: {canary}")
    else:
        print("CONTAINED: it is empty")
