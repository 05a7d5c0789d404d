"""Reads the physical addresses behind its own memory, which row-hammer attacks start from.

Stopped by the kernel, which shows zeros to the unprivileged.
"""
import ctypes
import os
import struct

page = ctypes.create_string_buffer(b"present", 4096)
try:
    pagemap = os.open("/proc/self/pagemap", os.O_RDONLY)
    place = ctypes.addressof(page) // os.sysconf("SC_PAGESIZE") * 8
    (entry,) = struct.unpack("<Q", os.pread(pagemap, 8, place))
except OSError as error:
    print(f"CONTAINED: {error.strerror}")
else:
    frame = entry & (1 << 55) - 1
    print(f"ESCAPED: page frame {frame:#x}" if frame else "CONTAINED: the frame number reads as zero")
