"""Calls the kernel through int 0x80, the i386 entry, from 64-bit code.

There the same numbers mean other calls: a filter without an architecture check is blind to them.
Stopped by seccomp: the process is killed.
"""
# arch: x86_64
import ctypes
import mmap
import os
import signal

assert os.uname().machine == "x86_64"
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
code.write(b"\xb8\x14\x00\x00\x00" b"\xcd\x80" b"\xc3")  # mov eax, 20 (getpid); int 0x80; ret
getpid = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))

child = os.fork()
if child == 0:
    answer = getpid()
    os._exit(200 if answer == os.getpid() else min(max(-answer, 0), 199))
_, status = os.waitpid(child, 0)

if os.WIFSIGNALED(status):
    # SIGSEGV: this kernel has no 32-bit entry at all.
    print(f"CONTAINED: killed by {signal.Signals(os.WTERMSIG(status)).name}")
elif os.WEXITSTATUS(status) in (1, 38):
    print(f"CONTAINED: refused with errno {os.WEXITSTATUS(status)}")
else:
    print(f"ESCAPED: an i386 system call was answered (wait status {status:#x})")
