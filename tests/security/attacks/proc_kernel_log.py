"""Reads the kernel's log by its four doors: syslog(2), /proc/kmsg, /dev/kmsg and dmesg(1).

It holds addresses, device names and other sandboxes' deaths. Stopped by seccomp, masks and a minimal /dev.
"""
import ctypes
import errno
import os
import subprocess

SYSLOG = {"x86_64": 103, "aarch64": 116}[os.uname().machine]
READ_ALL = 3
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
buffer = ctypes.create_string_buffer(4096)

holes, refused = [], set()
if libc.syscall(ctypes.c_long(SYSLOG), ctypes.c_long(READ_ALL), buffer, ctypes.c_long(4096)) < 0:
    refused.add(errno.errorcode[ctypes.get_errno()])
else:
    holes.append("syslog(2)")
for path in ("/proc/kmsg", "/dev/kmsg"):
    try:
        if os.read(os.open(path, os.O_RDONLY | os.O_NONBLOCK), 64):
            holes.append(path)
    except OSError as error:
        refused.add(errno.errorcode[error.errno])
try:
    if subprocess.run(["dmesg"], capture_output=True, timeout=10).stdout:
        holes.append("dmesg")
except FileNotFoundError:
    refused.add("no dmesg")
print(f"ESCAPED: read by {holes}" if holes else f"CONTAINED: {sorted(refused)}")
