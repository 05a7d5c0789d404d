"""Makes device nodes for disks, memory and the kernel log.

With such a node every other wall is moot. Stopped by having no capability, by nodev mounts and seccomp.
"""
import os
import stat

DEVICES = {
    "first SCSI disk": (stat.S_IFBLK, 8, 0),
    "first virtual disk": (stat.S_IFBLK, 254, 0),
    "physical memory": (stat.S_IFCHR, 1, 1),
    "kernel log": (stat.S_IFCHR, 1, 11),
    "fuse": (stat.S_IFCHR, 10, 229),
}
holes, refused = [], set()
for folder in ("/tmp", "/dev/shm", "/session", "/dev"):
    for name, (kind, major, minor) in DEVICES.items():
        path = os.path.join(folder, f"belljar-{os.getpid()}-{major}-{minor}")
        try:
            os.mknod(path, kind | 0o600, os.makedev(major, minor))
            holes.append(f"{name} in {folder}")
            os.unlink(path)
        except OSError as error:
            refused.add(error.strerror)
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {sorted(refused)}")
