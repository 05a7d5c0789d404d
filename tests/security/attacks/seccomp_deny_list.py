"""Knocks at every refused system call with broken arguments and looks who answers.

An unprivileged kernel call often says EPERM by itself, which hides a hole in the filter. Broken arguments
make the kernel answer EINVAL, EFAULT or EBADF instead: whoever sees these has got past seccomp.
"""
import ctypes
import errno
import os

BAD_TIME = (ctypes.c_long * 2)(0, 2_000_000)  # Too many microseconds: refused before any right is checked.
ME = os.getpid()
CALLS = {  # name: ((x86_64, aarch64), arguments); each is harmless even for root
    "mount": ((165, 40), (None, None, None, 0, None)),
    "umount2": ((166, 39), (b"", -1)),
    "pivot_root": ((155, 41), (None, None)),
    "chroot": ((161, 51), (None,)),
    "unshare": ((272, 97), (1,)),
    "setns": ((308, 268), (-1, 0)),
    "clone3": ((435, 435), (None, 0)),
    "open_tree": ((428, 428), (-1, None, -1)),
    "move_mount": ((429, 429), (-1, None, -1, None, -1)),
    "fsopen": ((430, 430), (None, -1)),
    "fsconfig": ((431, 431), (-1, 99, None, None, 0)),
    "fsmount": ((432, 432), (-1, -1, -1)),
    "fspick": ((433, 433), (-1, None, -1)),
    "mount_setattr": ((442, 442), (-1, None, -1, None, 0)),
    "open_tree_attr": ((467, 467), (-1, None, -1, None, 0)),
    "ptrace": ((101, 117), (99, 0, 0, 0)),
    "process_vm_readv": ((310, 270), (ME, None, 0, None, 0, 1)),
    "process_vm_writev": ((311, 271), (ME, None, 0, None, 0, 1)),
    "pidfd_getfd": ((438, 438), (-1, -1, 0)),
    "kcmp": ((312, 272), (ME, ME, 1, 0, 0)),
    "bpf": ((321, 280), (9999, None, 0)),
    "perf_event_open": ((298, 241), (None, 0, -1, -1, -1)),
    "userfaultfd": ((323, 282), (0x101,)),
    "io_uring_setup": ((425, 425), (0, None)),
    "io_uring_enter": ((426, 426), (-1, 0, 0, -1, None, 0)),
    "io_uring_register": ((427, 427), (-1, 99, None, 0)),
    "add_key": ((248, 217), (None, None, None, 0, 0)),
    "request_key": ((249, 218), (None, None, None, 0)),
    "keyctl": ((250, 219), (9999, 0, 0, 0, 0)),
    "memfd_secret": ((447, 447), (-1,)),
    "kexec_load": ((246, 104), (0, 9999, None, 0xFFFF)),
    "kexec_file_load": ((320, 294), (-1, -1, 0, None, -1)),
    "init_module": ((175, 105), (None, 0, None)),
    "finit_module": ((313, 273), (-1, None, -1)),
    "delete_module": ((176, 106), (None, 0)),
    "reboot": ((169, 142), (0, 0, 0, None)),
    "swapon": ((167, 224), (None, -1)),
    "swapoff": ((168, 225), (None,)),
    "settimeofday": ((164, 170), (BAD_TIME, None)),
    "clock_settime": ((227, 112), (0, None)),
    "sethostname": ((170, 161), (None, -1)),
    "setdomainname": ((171, 162), (None, -1)),
    "acct": ((163, 89), (1,)),
    "quotactl": ((179, 60), (-1, None, 0, None)),
    "quotactl_fd": ((443, 443), (-1, -1, 0, None)),
    "open_by_handle_at": ((304, 265), (-1, None, 0)),
    "fanotify_init": ((300, 262), (-1, -1)),
    "fanotify_mark": ((301, 263), (-1, -1, 0, -1, None)),
    "syslog": ((103, 116), (10, None, 0)),
    "vmsplice": ((278, 75), (-1, None, 0, 0)),
    "move_pages": ((279, 239), (0, 0, None, None, None, 0)),
    "migrate_pages": ((256, 238), (0, 0, None, None)),
    "lookup_dcookie": ((212, 18), (0, None, 0)),
    "iopl": ((172, None), (4,)),
    "ioperm": ((173, None), (-1, 1, 1)),
    "modify_ldt": ((154, None), (0, None, 0)),
    "uselib": ((134, None), (None,)),
    "ustat": ((136, None), (0, None)),
    "sysfs": ((139, None), (3,)),
}
REFUSALS = ("EPERM", "EACCES", "ENOSYS")  # Any other answer means that the kernel took the call.
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def syscall(number, *arguments):
    """Returns the result and, where it failed, the name of the errno."""
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *words)
    return result, errno.errorcode.get(ctypes.get_errno(), "unknown errno") if result < 0 else None


column = ("x86_64", "aarch64").index(os.uname().machine)
attempts = {
    name: syscall(numbers[column], *arguments)
    for name, (numbers, arguments) in CALLS.items()
    if numbers[column] is not None
}
holes = [f"{what}: {error or result}" for what, (result, error) in attempts.items() if error not in REFUSALS]
print(f"ESCAPED: {'; '.join(holes)}" if holes else f"CONTAINED: {sorted({e for _, e in attempts.values()})}")
