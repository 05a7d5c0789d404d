"""Writes to, links and changes its own interpreter through /proc/self/exe.

A kernel forked by a zygote still refers to the interpreter on the host's own, writable mount; only the
file's owner and mode stand between. Stopped by another uid, and by magic links giving no directory.
"""
import errno
import os
import tempfile

exe, target = "/proc/self/exe", os.path.join(tempfile.mkdtemp(), "link")
slash = os.open("/", os.O_RDONLY)  # Named explicitly, it makes os.link follow the magic link.
ATTEMPTS = {
    "write": lambda: os.open(exe, os.O_WRONLY),
    "append": lambda: os.open(exe, os.O_RDWR | os.O_APPEND),
    "chmod": lambda: os.chmod(exe, 0o4777),
    "chown": lambda: os.chown(exe, os.getuid(), os.getgid()),
    "utime": lambda: os.utime(exe, (0, 0)),
    "xattr": lambda: os.setxattr(exe, "user.belljar", b"x"),
    "truncate": lambda: os.truncate(exe, os.stat(exe).st_size),
    "hard link": lambda: os.link(exe, target, src_dir_fd=slash),
    "walk up": lambda: os.listdir(os.path.join(exe, "..")),
}
holes, refused = [], set()
for name, attempt in ATTEMPTS.items():
    try:
        attempt()
        holes.append(name)
    except OSError as error:
        refused.add(error.strerror)
        if error.errno == errno.ETXTBSY:
            holes.append(f"{name} (only its being in use protects it)")
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {sorted(refused)}")
