"""Runs a 32-bit program, all of whose system calls carry the other architecture's numbers.

The filter is inherited, but only its architecture check keeps it from misreading every number.
Stopped by seccomp, which kills the program at its first call, or by a kernel that cannot run it.
"""
import os
import struct
import tempfile

X86 = os.uname().machine == "x86_64"
CODE = (
    b"\xb8\x01\x00\x00\x00\xbb\x2a\x00\x00\x00\xcd\x80"  # mov eax, 1; mov ebx, 42; int 0x80
    if X86
    else b"\x01\x70\xa0\xe3\x2a\x00\xa0\xe3\x00\x00\x00\xef"  # mov r7, #1; mov r0, #42; svc 0
)
BASE, HEADERS = 0x08048000, 52 + 32
header = struct.pack(
    "<16sHHIIIIIHHHHHH", b"\x7fELF\x01\x01\x01", 2, 3 if X86 else 40, 1, BASE + HEADERS, 52, 0,
    0 if X86 else 0x05000000, 52, 32, 1, 0, 0, 0,
)
segment = struct.pack("<8I", 1, 0, BASE, BASE, HEADERS + len(CODE), HEADERS + len(CODE), 5, 0x1000)

outcomes = []
for folder in (os.getcwd(), "/tmp"):
    path = os.path.join(tempfile.mkdtemp(dir=folder), "elf32")
    with open(path, "wb") as file:
        file.write(header + segment + CODE)
    os.chmod(path, 0o755)
    child = os.fork()
    if child == 0:
        try:
            os.execv(path, [path])
        except OSError as error:
            os._exit(100 + error.errno % 100)
    outcomes.append(os.waitpid(child, 0)[1])

if any(os.WIFEXITED(status) and os.WEXITSTATUS(status) == 42 for status in outcomes):
    print("ESCAPED: a 32-bit program ran and made a system call")
else:
    print(f"CONTAINED: wait statuses {[hex(status) for status in outcomes]} (signal, or 100 + errno of exec)")
