"""Makes hard links to files it does not own, to keep, change or re-own them.

A link in a writable place to a setuid or host file outlives its repair. Stopped by separate mounts (EXDEV),
read-only mounts and the kernel's protected_hardlinks.
"""
import os
import tempfile

own = tempfile.mkdtemp()
holes, refused = [], set()
slash = os.open("/", os.O_RDONLY)  # Named explicitly, it makes os.link follow symbolic links.
for source in ("/etc/passwd", "/etc/hosts", "/usr/bin/env", "/bin/sh", os.__file__, "/proc/self/exe"):
    for folder in (own, os.getcwd(), "/dev/shm", os.path.dirname(source)):
        target = os.path.join(folder, f"belljar-link-{len(holes) + len(refused)}")
        try:
            os.link(source, target, src_dir_fd=slash)
            holes.append(f"{source} -> {target}")
            os.unlink(target)
        except OSError as error:
            refused.add(error.strerror)
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {sorted(refused)}")
