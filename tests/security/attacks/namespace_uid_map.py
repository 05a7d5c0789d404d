"""Rewrites the uid and gid maps of its own user namespace, and allows setgroups again.

Mapping the host's uid 0 into the sandbox makes code root on every file it can reach.
Stopped by the kernel: the maps are written once, before any code runs.
"""
import errno

WRITES = {"uid_map": "0 0 1\n", "gid_map": "0 0 1\n", "setgroups": "allow\n"}

holes, refused = [], set()
for name, text in WRITES.items():
    before = open(f"/proc/self/{name}").read()
    try:
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    except OSError as error:
        refused.add(errno.errorcode[error.errno])
    if open(f"/proc/self/{name}").read() != before:
        holes.append(name)
print(f"ESCAPED: changed {holes}" if holes else f"CONTAINED: {sorted(refused)}")
