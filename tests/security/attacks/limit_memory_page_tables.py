"""Reads one byte in every 2 MiB of a huge empty mapping: no memory of its own, but a page table for each.

Page tables are the kernel's memory and do not show as the process's. Stopped by the memory cgroup, which
counts them.
"""
# belljar: --memory 128M --timeout 60
# expect: ok|oom
import mmap

TABLES = (400 << 20) // 4096
MAP_NORESERVE, MADV_NOHUGEPAGE = 0x4000, 15
try:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    area = mmap.mmap(-1, TABLES << 21, flags=flags, prot=mmap.PROT_READ)
    area.madvise(MADV_NOHUGEPAGE)
    for number in range(TABLES):
        area[number << 21]
    print("ESCAPED: 400 MiB of page tables under a limit of 128 MiB")
except OSError as error:
    print(f"CONTAINED: {error.strerror}")
