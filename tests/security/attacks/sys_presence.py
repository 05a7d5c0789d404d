"""Looks for /sys, which shows the hardware and holds switches for most of it.

Stopped by not mounting it.
"""
import os

KINDS = ("sysfs", "debugfs", "tracefs", "securityfs", "efivarfs")
table = [line.split() for line in open("/proc/self/mountinfo")]
mounted = [fields[4] for fields in table if fields[fields.index("-") + 1] in KINDS]
inside = os.listdir("/sys") if os.path.isdir("/sys") else []
if mounted or inside:
    print(f"ESCAPED: /sys holds {inside}, mounted at {mounted}")
else:
    print("CONTAINED: there is no /sys, or it is empty")
