"""Leaves one file of 10 MiB under two hundred names.

Two gigabytes for the price of ten megabytes, wherever each name is copied. Stopped by storing by content
and by a bound on what one run may bring out.
"""
# expect: artifacts
import os

first = "/work/artifacts/copy-000.bin"
with open(first, "wb") as file:
    file.write(os.urandom(1 << 20) * 10)
made = 1
for number in range(1, 200):
    try:
        os.link(first, f"/work/artifacts/copy-{number:03}.bin")
        made += 1
    except OSError:
        break
print(f"CONTAINED: one file under {made} names")
