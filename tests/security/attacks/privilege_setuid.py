"""Changes to uid 0, gid 0 and new groups by every call there is.

Even inside a user namespace uid 0 owns more than the code should. Stopped by having no capability.
"""
import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
ATTEMPTS = {
    "setuid": lambda: os.setuid(0),
    "seteuid": lambda: os.seteuid(0),
    "setreuid": lambda: os.setreuid(0, 0),
    "setresuid": lambda: os.setresuid(0, 0, 0),
    "setgid": lambda: os.setgid(0),
    "setresgid": lambda: os.setresgid(0, 0, 0),
    "setgroups": lambda: os.setgroups([0]),
}

holes, refused = [], set()
for name, attempt in ATTEMPTS.items():
    try:
        attempt()
        holes.append(name)
    except OSError as error:
        refused.add(error.strerror)
libc.setfsuid(0)
if libc.setfsuid(-1) == 0:  # Returns the present value; it has no way to report an error.
    holes.append("setfsuid")
print(f"ESCAPED: {holes}" if holes else f"CONTAINED: {sorted(refused)}")
