"""Writes to files of its own outside of /session, /tmp and /dev: those that /proc has of every process.

They belong to us and lie on a writable mount, so nothing but Landlock is in the way (HOST_LANDLOCK: its generation on
this machine). The same rule stops writing to a read-only tree that was mounted writable by mistake.
"""
# only: native
import os

FILES = ("comm", "coredump_filter", "timerslack_ns", "oom_score_adj", "clear_refs", "mem")
holes, refused = [], set()
for name in FILES:
    try:
        os.close(os.open(f"/proc/self/{name}", os.O_WRONLY))
        holes.append(name)
    except OSError as error:
        refused.add(error.strerror)
if os.environ["HOST_LANDLOCK"] == "0":
    print("CONTAINED: this kernel has no Landlock")
else:
    print(f"ESCAPED: opened for writing: {holes}" if holes else f"CONTAINED: {sorted(refused)}")
