"""Asks for the host's name by every way there is (HOST_HOSTNAME holds it, to compare).

Stopped by a UTS namespace with a name of its own and an /etc made for the sandbox.
"""
import os
import platform
import socket

host = os.environ["HOST_HOSTNAME"]
answers = {"uname": platform.node(), "gethostname": socket.gethostname()}
for path in ("/proc/sys/kernel/hostname", "/etc/hostname", "/etc/hosts", "/etc/mailname"):
    try:
        answers[path] = open(path).read()
    except OSError:
        continue
holes = [way for way, name in answers.items() if host in name.split()]
print(f"ESCAPED: the host's name by {holes}" if holes else f"CONTAINED: we are {answers['uname']!r}")
