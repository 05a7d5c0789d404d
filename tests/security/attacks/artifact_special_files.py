"""Leaves artifacts that are no files: pipes, a socket, and device nodes where it can make them.

Opening a pipe waits for ever, reading a device never ends. Stopped by opening with O_NONBLOCK and taking
regular files only; device nodes cannot be made.
"""
# expect: artifacts
import os
import socket
import stat

ROOT = "/work/artifacts"
os.mkfifo(f"{ROOT}/results.csv")
listener = socket.socket(socket.AF_UNIX)
listener.bind(f"{ROOT}/report.sock")
os.symlink("/dev/zero", f"{ROOT}/endless.bin")

made = []
for name, kind, number in (("disk", stat.S_IFBLK, (8, 0)), ("zero", stat.S_IFCHR, (1, 5))):
    try:
        os.mknod(f"{ROOT}/{name}", kind | 0o666, os.makedev(*number))
        made.append(name)
    except OSError as error:
        reason = error.strerror
print(f"ESCAPED: device nodes {made}" if made else f"CONTAINED: {reason}; pipe, socket and link were planted")
