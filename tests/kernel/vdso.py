"""Runs in a kernel: gives it the vDSO of another machine, and checks its clocks.

`become_other` writes another vDSO over the one of Linux: its functions are elsewhere, in another order, and make system
calls. All addresses of functions that libraries remember are changed accordingly.
"""

import concurrent.futures
import ctypes
import datetime
import os
import struct
import time

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.getauxval.restype = libc.syscall.restype = ctypes.c_long
libc.mmap.argtypes = [ctypes.c_long] * 6
libc.mprotect.argtypes = [ctypes.c_long] * 3

SYSINFO_EHDR = 33
CALLS = {"clock_gettime": 228, "gettimeofday": 96, "time": 201, "clock_getres": 229, "getcpu": 309, "getrandom": 318}
CLOCKS = {name: getattr(time, name) for name in dir(time) if name.startswith("CLOCK_")}


def mappings():
    with open("/proc/self/maps") as file:
        table = file.read()
    for line in table.splitlines():
        place, rights, _, _, _, *name = line.split(None, 5)
        start, end = (int(word, 16) for word in place.split("-"))
        yield start, end, rights, name[0] if name else ""


def functions(start):
    """The functions of the vDSO at an address."""

    def word(at, form):
        return struct.unpack(form, ctypes.string_at(start + at, struct.calcsize(form)))[0]

    dynamic = next(word(at + 8, "Q") for at in range(64, 64 + 56 * word(56, "H"), 56) if word(at, "I") == 2)
    tags = {}
    while tag := word(dynamic + 16 * len(tags), "Q"):
        tags[tag] = word(dynamic + 16 * len(tags) + 8, "Q")
    found = {}
    for at in range(tags[6], tags[5], 24):
        name, info, _, _, value, _ = struct.unpack("IBBHQQ", ctypes.string_at(start + at, 24))
        if info & 15 == 2:
            found[ctypes.string_at(start + tags[5] + name).decode().removeprefix("__vdso_")] = start + value
    return found


def other_vdso(size):
    """A vDSO whose functions are in another order, and at other places."""
    names = ["getcpu", "time", "getrandom", "clock_getres", "clock_gettime", "gettimeofday"]
    strings, symbols = b"\0linux-vdso.so.1\0", bytes(24)
    image = bytearray(size)
    for number, name in enumerate(names):
        place = size - 64 * (number + 1) - 8
        symbols += struct.pack("IBBHQQ", len(strings), 0x12, 0, 1, place, 64)
        strings += b"__vdso_" + name.encode() + b"\0"
        code = b"\xb8" + struct.pack("I", CALLS[name]) + b"\x0f\x05\xc3"
        image[place : place + len(code)] = code
    dynamic_at, symbols_at = 0x100, 0x200
    strings_at = symbols_at + len(symbols)
    pairs = [(6, symbols_at), (5, strings_at), (10, len(strings)), (0, 0)]
    parts = [
        (
            0,
            b"\x7fELF\x02\x01\x01"
            + bytes(9)
            + struct.pack("HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0),
        ),
        (64, struct.pack("IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)),
        (120, struct.pack("IIQQQQQQ", 2, 4, dynamic_at, dynamic_at, dynamic_at, 64, 64, 8)),
        (dynamic_at, b"".join(struct.pack("QQ", *pair) for pair in pairs)),
        (symbols_at, symbols),
        (strings_at, strings),
    ]
    for at, part in parts:
        image[at : at + len(part)] = part
    return bytes(image)


def become_other():
    """Returns how many addresses were changed."""
    start, end = next((start, end) for start, end, _, name in mappings() if name == "[vdso]")
    image = ctypes.create_string_buffer(other_vdso(end - start), end - start)
    before, after = functions(start), functions(ctypes.addressof(image))
    places = []
    for low, high, rights, name in list(mappings()):
        if not (name.startswith("/") and rights[0] == "r" and rights[2] == "-"):
            continue
        content = ctypes.string_at(low, high - low)
        found = [(low + at, f) for f in before for at in everywhere(content, struct.pack("Q", before[f]))]
        if found:
            assert libc.mprotect(low, high - low, 3) == 0
        places += [(ctypes.c_uint64.from_address(at), start + after[f] - ctypes.addressof(image)) for at, f in found]
    # Until all is changed, this process must not ask for the time.
    assert libc.mprotect(start, end - start, 7) == 0
    ctypes.memmove(start, image, end - start)
    for place, value in places:
        place.value = value
    assert libc.mprotect(start, end - start, 5) == 0
    return len(places)


def everywhere(content, word):
    at = content.find(word)
    while at >= 0:
        if at % 8 == 0:
            yield at
        at = content.find(word, at + 1)


def copies():
    """How many redirected vDSOs there are."""
    marked = b"\x7fELF\x02\x01\x01\0\0BELLJAR"
    return sum(
        ctypes.string_at(start, 16) == marked for start, _, rights, name in mappings() if rights == "r-xp" and not name
    )


def asked(number, *arguments):
    """The answer of a system call that returns a time, in nanoseconds."""
    place = (ctypes.c_int64 * 2)()
    assert libc.syscall(number, *arguments, place) == 0
    return place[0] * 10**9 + place[1]


def check():
    """What is wrong with the clocks and the like of this process."""
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        wrong = [*once(), *(text for thread in [threads.submit(once) for _ in range(8)] for text in thread.result())]
    return wrong


def once():
    wrong = []
    for name, clock in CLOCKS.items():
        early = asked(CALLS["clock_gettime"], clock)
        now = time.clock_gettime_ns(clock)
        if not early <= now <= asked(CALLS["clock_gettime"], clock):
            wrong.append(name)
        if round(time.clock_getres(clock) * 1e9) != asked(CALLS["clock_getres"], clock):
            wrong.append(f"resolution of {name}")
    known = functions(libc.getauxval(SYSINFO_EHDR))
    early = time.time()
    stamp = (ctypes.c_int64 * 2)()
    gettimeofday = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(known["gettimeofday"])
    assert gettimeofday(ctypes.addressof(stamp), None) == 0
    times = {
        "datetime.now": datetime.datetime.now().timestamp(),
        "gettimeofday": stamp[0] + stamp[1] / 1e6,
        "time": ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p)(known["time"])(None),
    }
    late = time.time()
    wrong += [name for name, value in times.items() if not early - 1.1 <= value <= late + 0.1]
    if not asked(228, 1) - 10**9 < time.monotonic_ns() <= asked(228, 1):
        wrong.append("monotonic")
    cpus = os.sched_getaffinity(0)
    mine = min(cpus)
    os.sched_setaffinity(0, {mine})
    cpu, node = ctypes.c_uint(99), ctypes.c_uint(99)
    getcpu = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(known["getcpu"])
    if getcpu(ctypes.addressof(cpu), ctypes.addressof(node), None) or cpu.value != mine or libc.sched_getcpu() != mine:
        wrong.append(f"getcpu {cpu.value}, sched_getcpu {libc.sched_getcpu()}, not {mine}")
    os.sched_setaffinity(0, cpus)
    if os.getrandom(16) == os.getrandom(16):
        wrong.append("random")
    return wrong


def getrandom(state_len):
    """The vDSO's answer, and whether it wrote something."""
    place = ctypes.create_string_buffer(16)
    words = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_void_p, ctypes.c_size_t]
    call = ctypes.CFUNCTYPE(ctypes.c_long, *words)(functions(libc.getauxval(SYSINFO_EHDR))["getrandom"])
    return call(ctypes.addressof(place), 16, 0, None, state_len), any(place.raw)


def cost(function, calls=2_000_000):
    """Nanoseconds of a call of `clock_gettime(CLOCK_MONOTONIC)`."""
    loop = bytes.fromhex("534154415548 89fb4989f44989d5 bf010000004c89ee41ffd448ffcb75f0 415d415c5bc3".replace(" ", ""))
    place = libc.mmap(0, 4096, 7, 0x22, -1, 0)
    ctypes.memmove(place, loop, len(loop))
    run = ctypes.CFUNCTYPE(None, ctypes.c_long, ctypes.c_long, ctypes.c_void_p)(place)
    room = (ctypes.c_int64 * 2)()
    best = 1e9
    for _ in range(7):
        early = time.perf_counter_ns()
        run(calls, function, ctypes.addressof(room))
        best = min(best, (time.perf_counter_ns() - early) / calls)
    libc.munmap(ctypes.c_long(place), ctypes.c_long(4096))
    return best


def costs():
    """Of the function that libraries know, and of Linux's own."""
    known = functions(libc.getauxval(SYSINFO_EHDR))["clock_gettime"]
    own = functions(next(start for start, _, _, name in mappings() if name == "[vdso]"))["clock_gettime"]
    return round(cost(known), 1), round(cost(own), 1)


def seal():
    """Forbids to move what Linux provides."""
    for start, end, _, name in list(mappings()):
        if name.startswith("[v") and name != "[vsyscall]":
            assert (
                libc.syscall(ctypes.c_long(462), ctypes.c_long(start), ctypes.c_long(end - start), ctypes.c_long(0))
                == 0
            )
