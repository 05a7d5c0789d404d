"""Leaves artifacts that are hard links to programs and configuration, where it can make them.

Taking such a file over may change or publish the original. Stopped by separate mounts: no link is made.
"""
# expect: artifacts
import os
import sys

slash = os.open("/", os.O_RDONLY)  # Named explicitly, it makes os.link follow symbolic links.
made, refused = [], set()
for number, source in enumerate((sys.executable, "/usr/bin/python3", "/proc/self/exe", "/etc/passwd")):
    try:
        os.link(source, f"/work/artifacts/hard-{number}", src_dir_fd=slash)
        made.append(source)
    except OSError as error:
        refused.add(error.strerror)
print(f"ESCAPED: linked {made}" if made else f"CONTAINED: {sorted(refused)}")
