"""Looks for anything writable in the directories that hold programs, libraries and configuration.

A writable file there would change what other sandboxes or the host run. Stopped by the read-only root.
"""
import os
import time

deadline = time.monotonic() + 20
seen, holes = 0, []
for top in "/usr /etc /bin /sbin /lib /lib64 /opt /srv /var /data /boot /root".split():
    for folder, _, files in os.walk(top):
        for path in [folder] + [os.path.join(folder, name) for name in files]:
            seen += 1
            if not path.startswith("/var/tmp") and not os.path.islink(path) and os.access(path, os.W_OK):
                holes.append(path)
        if time.monotonic() > deadline or len(holes) > 5:
            break

for name in ("/belljar-write", "/usr/belljar-write", "/etc/belljar-write"):
    try:
        os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600))
        os.unlink(name)
        holes.append(name)
    except OSError as error:
        reason = error.strerror
print(f"ESCAPED: writable: {holes[:6]}" if holes else f"CONTAINED: {reason}; {seen} paths, none writable")
