"""Fills System V segments and lets go of them: they stay without any process that could be killed for it.

Stopped by the memory cgroup and, at the end, by the IPC namespace going away with them.
"""
# belljar: --memory 128M --timeout 60
# expect: ok|oom
import ctypes
import errno

MIB, SEGMENTS, EACH = 1 << 20, 13, 32
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p

filled, reason = 0, None
for _ in range(SEGMENTS):
    segment = libc.shmget(0, ctypes.c_size_t(EACH * MIB), 0o1600)  # IPC_PRIVATE, IPC_CREAT
    address = libc.shmat(segment, None, 0) if segment >= 0 else None
    if segment < 0 or address in (None, ctypes.c_void_p(-1).value):
        reason = errno.errorcode.get(ctypes.get_errno())
        break
    ctypes.memset(address, 0x5A, EACH * MIB)
    libc.shmdt(ctypes.c_void_p(address))
    filled += EACH
if reason:
    print(f"CONTAINED: {reason} after {filled} MiB")
else:
    print(f"ESCAPED: {filled} MiB in System V segments under a limit of 128 MiB")
