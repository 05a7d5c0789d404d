"""Pastes into a virtual console with TIOCLINUX, the forgotten sister of TIOCSTI (CVE-2023-1523).

Stopped by seccomp, and by having no console device: on anything else it must fail.
"""
import errno
import fcntl
import os

TIOCLINUX, PASTE = 0x541C, 3

holes, refused = [], set()
targets = [0, 1, 2]
for path in ("/dev/tty", "/dev/console", "/dev/tty0", "/dev/tty1", "/dev/ptmx"):
    try:
        targets.append(os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError as error:
        refused.add(errno.errorcode[error.errno])
for target in targets:
    try:
        fcntl.ioctl(target, TIOCLINUX, bytes([PASTE]))
        holes.append(os.readlink(f"/proc/self/fd/{target}"))
    except OSError as error:
        refused.add(errno.errorcode[error.errno])
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {sorted(refused)}")
