"""Replaces the interpreter by another program that keeps its descriptors and says nothing more.

Whoever waits for the interpreter's last word waits in vain. Stopped by watching the process.
"""
# belljar: --timeout 10
# expect: crashed
import os

for number in range(3, 256):
    try:
        os.set_inheritable(number, True)
    except OSError:
        continue
os.execv("/bin/sh", ["sh", "-c", "sleep 1; exit 0"])
