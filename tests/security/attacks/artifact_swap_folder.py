"""Swaps a folder of artifacts for a link to /etc while the run ends (renameat2 with RENAME_EXCHANGE).

The last step of a path may be checked and the one before it forgotten. Stopped by opening every step
without following links, or by stopping all processes first.
"""
# expect: artifacts
import ctypes
import os
import time

RENAMEAT2 = {"x86_64": 316, "aarch64": 276}[os.uname().machine]
AT_FDCWD, RENAME_EXCHANGE = -100, 2
ROOT = "/work/artifacts"
libc = ctypes.CDLL(None, use_errno=True)
os.mkdir(f"{ROOT}/folder")
for name in ("passwd", "shadow", "hosts"):
    with open(f"{ROOT}/folder/{name}", "w") as file:
        file.write("an honest file\n")
os.symlink("/etc", f"{ROOT}/.other")

if os.fork() == 0:
    os.setsid()
    end = time.monotonic() + 60
    here, there = f"{ROOT}/folder".encode(), f"{ROOT}/.other".encode()
    while time.monotonic() < end:
        libc.syscall(ctypes.c_long(RENAMEAT2), AT_FDCWD, here, AT_FDCWD, there, RENAME_EXCHANGE)
    os._exit(0)
time.sleep(0.5)
print("CONTAINED: a folder is being swapped for a link")
