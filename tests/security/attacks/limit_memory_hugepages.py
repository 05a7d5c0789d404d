"""Takes memory from the host's pool of huge pages, which the memory cgroup does not count.

Stopped by the hugetlb cgroup or by refusing MAP_HUGETLB; a host without reserved pages has none to give.
"""
# belljar: --memory 128M --timeout 60
# expect: ok|oom
import errno
import mmap
import os

MAP_HUGETLB, MFD_HUGETLB, GOAL = 0x40000, 4, 256 << 20


def by_mmap():
    area = mmap.mmap(-1, GOAL, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB)
    for offset in range(0, GOAL, 2 << 20):
        area[offset] = 1


def by_memfd():
    os.posix_fallocate(os.memfd_create("huge", MFD_HUGETLB), 0, GOAL)


holes, refused = [], set()
for attempt in (by_mmap, by_memfd):
    try:
        attempt()
        holes.append(attempt.__name__)
    except OSError as error:
        refused.add(errno.errorcode[error.errno])
print(f"ESCAPED: 256 MiB of huge pages {holes}" if holes else f"CONTAINED: {sorted(refused)}")
