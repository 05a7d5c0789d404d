"""Takes capabilities back: capset with all bits, the ambient set, the securebits.

One capability in the wrong place is root. Stopped by empty permitted and bounding sets.
"""
import ctypes
import struct

PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, PR_SET_SECUREBITS, CAP_SYS_ADMIN = 47, 2, 28, 21
libc = ctypes.CDLL(None, use_errno=True)

header = ctypes.create_string_buffer(struct.pack("<Ii", 0x20080522, 0), 8)
everything = ctypes.create_string_buffer(b"\xff" * 24, 24)
answers = {
    "capset": libc.capset(header, everything),
    "ambient": libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_ADMIN, 0, 0),
    "securebits": libc.prctl(PR_SET_SECUREBITS, 0, 0, 0, 0),
}
sets = dict(line.split() for line in open("/proc/self/status") if line.startswith("Cap"))
held = {name: value for name, value in sets.items() if int(value, 16)}
# The one that started us must not have any either: it runs our commands, and can be talked to.
for name, value in (line.split() for line in open("/proc/1/status") if line.startswith("Cap")):
    if int(value, 16):
        held[f"{name} of PID 1"] = value

assert len(sets) == 5, "the kernel no longer lists five capability sets"
if held or 0 in answers.values():
    print(f"ESCAPED: {answers}, capabilities {held}")
else:
    print("CONTAINED: refused, and all five sets are empty")
