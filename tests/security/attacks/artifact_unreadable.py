"""Leaves artifacts and folders that nobody may read or enter (mode 000), and a folder nobody may list.

Collecting and cleaning up must not fail over them, nor try harder with more rights. Stopped by reporting
them as unreadable and going on.
"""
# expect: artifacts
# arrives: readable.txt
import os

ROOT = "/work/artifacts"
for name, mode in (("none", 0o000), ("write-only", 0o200), ("setuid", 0o6755), ("sticky", 0o1777)):
    with open(f"{ROOT}/{name}.txt", "w") as file:
        file.write(name)
    os.chmod(f"{ROOT}/{name}.txt", mode)
    os.mkdir(f"{ROOT}/{name}")
    with open(f"{ROOT}/{name}/inside.txt", "w") as file:
        file.write(name)
    os.chmod(f"{ROOT}/{name}", mode & 0o777)
with open(f"{ROOT}/readable.txt", "w") as file:
    file.write("this one must arrive")
print("CONTAINED: unreadable files and folders were left")
