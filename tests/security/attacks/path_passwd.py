"""Reads the host's users from /etc/passwd and its like.

Names and home directories help in attacking the person. Stopped by an /etc made for the sandbox.
"""
import os

holes, entries = [], 0
for line in open("/etc/passwd"):
    name, password, uid, *_ = line.rstrip("\n").split(":")
    entries += 1
    if int(uid) >= 1000 and int(uid) not in (os.getuid(), 65534):
        holes.append(f"user {name} ({uid})")
    if password not in ("x", "*", "!", "!!", ""):
        holes.append(f"a password hash of {name}")
for path in ("/etc/subuid", "/etc/subgid", "/etc/shadow", "/etc/passwd-"):
    if os.path.exists(path) and os.access(path, os.R_OK) and os.path.getsize(path):
        holes.append(path)
assert entries, "/etc/passwd is empty"
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {entries} entries, none of a host user")
