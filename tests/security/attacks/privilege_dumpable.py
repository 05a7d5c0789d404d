"""Plays with the dumpable and ptracer flags of prctl, then tries PID 1's memory again.

The flags belong to the caller, so they must not open anything of anybody else. Stopped by PID 1 being
not dumpable.
"""
import ctypes
import os

PR_SET_DUMPABLE, PR_SET_PTRACER = 4, 0x59616D61
libc = ctypes.CDLL(None, use_errno=True)

holes, refused = [], set()
for dumpable in (0, 1):
    libc.prctl(PR_SET_DUMPABLE, dumpable, 0, 0, 0)
    libc.prctl(PR_SET_PTRACER, ctypes.c_long(-1), 0, 0, 0)
    for name in ("mem", "environ", "maps"):
        try:
            os.close(os.open(f"/proc/1/{name}", os.O_RDONLY))
            holes.append(name)
        except OSError as error:
            refused.add(error.strerror)
print(f"ESCAPED: can open {sorted(set(holes))} of PID 1" if holes else f"CONTAINED: {sorted(refused)}")
