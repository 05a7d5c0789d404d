"""Searches the file system for setuid and setgid programs and for files with capabilities.

Where the mount honours them, running one is enough to gain its owner's rights.
Stopped by nosuid on every mount and by no_new_privs.
"""
import os
import stat
import time

ST_NOSUID = 2
SKIP = ("/proc", "/dev")
deadline = time.monotonic() + 20

seen, inert, holes = 0, 0, []
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if os.path.join(folder, name) not in SKIP]
    for path in [os.path.join(folder, name) for name in files]:
        try:
            mode = os.lstat(path).st_mode
            if not stat.S_ISREG(mode) or not mode & 0o111:
                continue
            seen += 1
            special = mode & 0o6000 or "security.capability" in os.listxattr(path)
            if special and not os.statvfs(path).f_flag & ST_NOSUID:
                holes.append(path)
            elif special:
                inert += 1
        except OSError:
            continue
    if time.monotonic() > deadline:
        break

assert seen > 10, "hardly a program was found: the search proves nothing"
print(f"ESCAPED: live {holes[:5]}" if holes else f"CONTAINED: {seen} programs, {inert} setuid but inert")
