"""Locks more memory than its limit, so that it could never be swapped or reclaimed.

Stopped by RLIMIT_MEMLOCK and by the memory cgroup.
"""
# belljar: --memory 128M --timeout 60
# expect: ok|oom
import ctypes
import errno
import mmap

GOAL = 400 << 20
libc = ctypes.CDLL(None, use_errno=True)
area = mmap.mmap(-1, GOAL)
address = ctypes.addressof(ctypes.c_char.from_buffer(area))
if libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(GOAL)) == 0:
    print(f"ESCAPED: locked {GOAL >> 20} MiB under a limit of 128 MiB")
else:
    print(f"CONTAINED: {errno.errorcode[ctypes.get_errno()]}")
