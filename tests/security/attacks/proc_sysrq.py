"""Presses the magic SysRq key: /proc/sysrq-trigger can reboot or crash the machine.

Sends only "h", the help text. Stopped by a mask and by ownership.
"""
import os
import stat

PATH = "/proc/sysrq-trigger"
try:
    device = stat.S_ISCHR(os.stat(PATH).st_mode)
    with open(PATH, "wb", buffering=0) as file:
        file.write(b"h")
except OSError as error:
    print(f"CONTAINED: {error.strerror}")
else:
    print("CONTAINED: masked by a device node" if device else "ESCAPED: the key was pressed")
