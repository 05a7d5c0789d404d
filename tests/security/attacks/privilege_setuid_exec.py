"""Runs the setuid programs that a host's /usr brings along and looks whether one makes it root.

Stopped by nosuid mounts, by no_new_privs and by having no user but one.
"""
import os
import shutil
import subprocess
import tempfile

PATH = "/usr/bin:/usr/sbin:/bin:/sbin:/usr/local/bin:/usr/lib/openssh"
target = tempfile.mkdtemp()
COMMANDS = [
    ["su", "-c", "id -u"],
    ["sudo", "-n", "id", "-u"],
    ["doas", "-n", "id", "-u"],
    ["pkexec", "id", "-u"],
    ["mount", "-t", "tmpfs", "none", target],
    ["fusermount3", "-u", target],
    ["newgrp", "root"],
    ["chsh", "-s", "/bin/sh", "root"],
    ["id", "-u"],  # The yardstick: it must say our own uid.
]

holes, answers = [], {}
for command in COMMANDS:
    program = shutil.which(command[0], path=PATH)
    if program is None:
        continue
    done = subprocess.run(
        [program, *command[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20
    )
    answers[command[0]] = done.returncode
    if done.stdout.strip() == "0" or os.path.ismount(target):
        holes.append(command)
assert "id" in answers, "not even id(1) could be run"
print(f"ESCAPED: root through {holes}" if holes else f"CONTAINED: exit statuses {answers}")
