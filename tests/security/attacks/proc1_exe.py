"""Overwrites the supervisor's program through /proc/1/exe (the runc break-out, CVE-2019-5736).

That file is the belljar binary itself, run by the host next time. Stopped by PID 1 not being dumpable, by
file ownership and by read-only mounts.
"""
import errno
import os

holes, refused = [], set()
for mode in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND):
    try:
        os.close(os.open("/proc/1/exe", mode))
        holes.append("opened for writing")
    except OSError as error:
        refused.add(errno.errorcode[error.errno])
if "ETXTBSY" in refused:
    holes.append("only its being in use protects it")
try:
    holes.append(f"its path on the host is {os.readlink('/proc/1/exe')}")
except OSError as error:
    refused.add(errno.errorcode[error.errno])
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted(refused)}")
