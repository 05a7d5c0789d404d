//! The system calls a sandbox may make, as data. What is not named here is refused.
//!
//! The list is for what users run in a sandbox: CPython with the scientific stack, multiprocessing, compilers, shells, Node,
//! SQLite. Every group has its reason. Calls that are left out on purpose are at the end, so that they are not added by
//! accident.

/// Allowed with any arguments: (why, names). A name may exist on one architecture only.
pub(super) const ALLOWED: &[(&str, &[&str])] = &[
    (
        "reading and writing what is open",
        &[
            "read",
            "write",
            "readv",
            "writev",
            "pread64",
            "pwrite64",
            "preadv",
            "pwritev",
            "preadv2",
            "pwritev2",
            "lseek",
            "sendfile",
            "copy_file_range",
            "readahead",
            "fadvise64",
            "sync_file_range",
            "close",
            "close_range",
            "dup",
            "dup2",
            "dup3",
            "fcntl",
            "flock",
            "fsync",
            "fdatasync",
            "sync",
            "syncfs",
            "ftruncate",
            "truncate",
            "fallocate",
            "cachestat",
        ],
    ),
    (
        "names of files: opening, looking, changing; the mounts decide what is reached",
        &[
            "open",
            "openat",
            "openat2",
            "creat",
            "stat",
            "fstat",
            "lstat",
            "newfstatat",
            "statx",
            "access",
            "faccessat",
            "faccessat2",
            "readlink",
            "readlinkat",
            "getdents",
            "getdents64",
            "getcwd",
            "chdir",
            "fchdir",
            "mkdir",
            "mkdirat",
            "rmdir",
            "unlink",
            "unlinkat",
            "rename",
            "renameat",
            "renameat2",
            "link",
            "linkat",
            "symlink",
            "symlinkat",
            "chmod",
            "fchmod",
            "fchmodat",
            "fchmodat2",
            "chown",
            "fchown",
            "lchown",
            "fchownat",
            "umask",
            "utime",
            "utimes",
            "utimensat",
            "futimesat",
            "statfs",
            "fstatfs",
            "mknod",
            "mknodat",
            "getxattr",
            "lgetxattr",
            "fgetxattr",
            "setxattr",
            "lsetxattr",
            "fsetxattr",
            "listxattr",
            "llistxattr",
            "flistxattr",
            "removexattr",
            "lremovexattr",
            "fremovexattr",
            "getxattrat",
            "setxattrat",
            "listxattrat",
            "removexattrat",
        ],
    ),
    (
        "memory of the process itself",
        &[
            "brk",
            "mmap",
            "munmap",
            "mremap",
            "mprotect",
            "madvise",
            "mincore",
            "msync",
            "mlock",
            "mlock2",
            "munlock",
            "mlockall",
            "munlockall",
            "membarrier",
            "memfd_create",
            "pkey_alloc",
            "pkey_free",
            "pkey_mprotect",
            "mseal",
            "get_mempolicy",
            "set_mempolicy",
            "mbind",
            "map_shadow_stack",
            "remap_file_pages",
        ],
    ),
    (
        "processes and threads; namespaces are kept out of clone by its flags below",
        &[
            "fork",
            "vfork",
            "execve",
            "execveat",
            "exit",
            "exit_group",
            "wait4",
            "waitid",
            "getpid",
            "getppid",
            "gettid",
            "getpgid",
            "getpgrp",
            "setpgid",
            "getsid",
            "setsid",
            "set_tid_address",
            "set_robust_list",
            "get_robust_list",
            "rseq",
            "arch_prctl",
            "prctl",
            "pidfd_open",
            "pidfd_send_signal",
            "restart_syscall",
            "getcpu",
        ],
    ),
    (
        "waiting for one another",
        &[
            "futex",
            "futex_wake",
            "futex_wait",
            "futex_requeue",
            "futex_waitv",
            "poll",
            "ppoll",
            "select",
            "pselect6",
            "epoll_create",
            "epoll_create1",
            "epoll_ctl",
            "epoll_wait",
            "epoll_pwait",
            "epoll_pwait2",
            "eventfd",
            "eventfd2",
            "pipe",
            "pipe2",
            "inotify_init",
            "inotify_init1",
            "inotify_add_watch",
            "inotify_rm_watch",
        ],
    ),
    (
        "signals; the PID namespace decides who is reached",
        &[
            "rt_sigaction",
            "rt_sigprocmask",
            "rt_sigreturn",
            "rt_sigpending",
            "rt_sigtimedwait",
            "rt_sigqueueinfo",
            "rt_tgsigqueueinfo",
            "rt_sigsuspend",
            "sigaltstack",
            "signalfd",
            "signalfd4",
            "kill",
            "tkill",
            "tgkill",
            "pause",
            "alarm",
        ],
    ),
    (
        "time, to be read and waited for",
        &[
            "clock_gettime",
            "clock_getres",
            "clock_nanosleep",
            "nanosleep",
            "gettimeofday",
            "time",
            "times",
            "getitimer",
            "setitimer",
            "timer_create",
            "timer_settime",
            "timer_gettime",
            "timer_getoverrun",
            "timer_delete",
            "timerfd_create",
            "timerfd_settime",
            "timerfd_gettime",
        ],
    ),
    (
        "who we are; without capabilities the setters change nothing of note",
        &[
            "getuid",
            "geteuid",
            "getgid",
            "getegid",
            "getresuid",
            "getresgid",
            "getgroups",
            "setuid",
            "setgid",
            "setreuid",
            "setregid",
            "setresuid",
            "setresgid",
            "setgroups",
            "setfsuid",
            "setfsgid",
            "capget",
            "capset",
        ],
    ),
    (
        "scheduling of our own threads, within the cgroup",
        &[
            "sched_yield",
            "sched_getaffinity",
            "sched_getparam",
            "sched_getscheduler",
            "sched_getattr",
            "sched_get_priority_max",
            "sched_get_priority_min",
            "sched_rr_get_interval",
            "getpriority",
            "ioprio_get",
        ],
    ),
    (
        "limits and accounts; raising a limit needs a capability nobody has",
        &["getrlimit", "setrlimit", "getrusage", "sysinfo", "uname"],
    ),
    (
        "sockets of the families allowed below; the network namespace holds loopback only",
        &[
            "bind",
            "connect",
            "listen",
            "accept",
            "accept4",
            "getsockname",
            "getpeername",
            "getsockopt",
            "sendto",
            "recvfrom",
            "sendmsg",
            "recvmsg",
            "sendmmsg",
            "recvmmsg",
            "shutdown",
        ],
    ),
    (
        "System V and POSIX messages; the IPC namespace is the sandbox's own",
        &[
            "shmget",
            "shmat",
            "shmdt",
            "shmctl",
            "semget",
            "semop",
            "semtimedop",
            "semctl",
            "msgget",
            "msgsnd",
            "msgrcv",
            "msgctl",
            "mq_open",
            "mq_unlink",
            "mq_timedsend",
            "mq_timedreceive",
            "mq_notify",
            "mq_getsetattr",
        ],
    ),
    ("random numbers", &["getrandom"]),
    (
        "walls that code builds around itself can only be tighter than ours",
        &["seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"],
    ),
    (
        "asynchronous I/O of the old kind, used by some databases; io_uring stays out",
        &["io_setup", "io_destroy", "io_submit", "io_cancel", "io_getevents", "io_pgetevents"],
    ),
];

/// A test on one argument; all tests of a rule must hold.
#[derive(Debug, Clone, Copy)]
pub(super) enum Test {
    /// The argument, as 32 bits, equals this.
    Is(u32),
    /// The argument, as 32 bits, differs from this.
    IsNot(u32),
    /// None of these bits is set.
    NoneOf(u64),
    /// No bit outside these is set.
    Only(u64),
}

/// Allowed if one rule holds: (name, why, rules of (argument index, test)).
pub(super) type Rule = &'static [(u8, Test)];

pub(super) const CONDITIONAL: &[(&str, &str, &[Rule])] = &[
    (
        "clone",
        "threads and processes, but no new namespace of any kind",
        &[&[(0, Test::NoneOf(CLONE_NEW_ANY))]],
    ),
    (
        "socket",
        "UNIX and internet sockets; of netlink only routing, which getifaddrs needs. Everything \
         else (AF_ALG, AF_VSOCK, AF_PACKET, AF_RXRPC, AF_KEY, AF_XDP, ...) is attack surface",
        SOCKET_RULES,
    ),
    ("socketpair", "as socket", SOCKET_RULES),
    (
        "setsockopt",
        "all options but SO_LINGER: with it, whoever closes the last descriptor of a socket waits \
         for as long as the sandbox chose, be it the server or a worker of the kernel. Programs \
         are told so (EPERM): that a connection is reset when closed, its other use, must not be \
         believed in vain",
        &[&[(1, Test::IsNot(SOL_SOCKET))], &[(2, Test::IsNot(SO_LINGER))]],
    ),
    (
        "ioctl",
        "terminals and files, but no faking of terminal input",
        &[&[(1, Test::IsNot(TIOCSTI)), (1, Test::IsNot(TIOCLINUX)), (1, Test::IsNot(TIOCSETD))]],
    ),
    ("personality", "asking, and the default", &[&[(0, Test::Is(u32::MAX))], &[(0, Test::Is(0))]]),
    (
        "prlimit64",
        "a process's own limits; PID 1 has the same uid and must not be reachable this way",
        &[&[(0, Test::Is(0))]],
    ),
    ("sched_setaffinity", NOT_THE_GUEST, &[&[(0, Test::IsNot(GUEST))]]),
    ("sched_setattr", NOT_THE_GUEST, &[&[(0, Test::IsNot(GUEST))]]),
    ("sched_setparam", NOT_THE_GUEST, &[&[(0, Test::IsNot(GUEST))]]),
    ("sched_setscheduler", NOT_THE_GUEST, &[&[(0, Test::IsNot(GUEST))]]),
    ("setpriority", NOT_THE_GUEST, &[&[(0, Test::Is(PRIO_PROCESS)), (1, Test::IsNot(GUEST))]]),
    ("ioprio_set", NOT_THE_GUEST, &[&[(0, Test::Is(IOPRIO_WHO_PROCESS)), (1, Test::IsNot(GUEST))]]),
];

/// Why scheduling calls are restricted: who keeps the time must get time, and PID 1 has the uid of
/// the code it supervises. Whole groups and users are refused because they include it.
const NOT_THE_GUEST: &str = "priorities of single processes, but not of PID 1";
const GUEST: u32 = 1;
const PRIO_PROCESS: u32 = 0;
const IOPRIO_WHO_PROCESS: u32 = 1;

/// The type may carry SOCK_NONBLOCK and SOCK_CLOEXEC. Raw sockets need a capability anyway, but
/// their code need not be reachable; nor need that of MPTCP, SCTP, SMC and other protocols, which
/// the kernel would even load for us.
const SOCKET_RULES: &[Rule] = &[
    &[(0, Test::Is(AF_UNIX))],
    &[(0, Test::Is(AF_INET)), (1, STREAM), (2, Test::Is(0))],
    &[(0, Test::Is(AF_INET)), (1, STREAM), (2, Test::Is(IPPROTO_TCP))],
    &[(0, Test::Is(AF_INET)), (1, DGRAM), (2, Test::Is(0))],
    &[(0, Test::Is(AF_INET)), (1, DGRAM), (2, Test::Is(IPPROTO_UDP))],
    &[(0, Test::Is(AF_INET6)), (1, STREAM), (2, Test::Is(0))],
    &[(0, Test::Is(AF_INET6)), (1, STREAM), (2, Test::Is(IPPROTO_TCP))],
    &[(0, Test::Is(AF_INET6)), (1, DGRAM), (2, Test::Is(0))],
    &[(0, Test::Is(AF_INET6)), (1, DGRAM), (2, Test::Is(IPPROTO_UDP))],
    &[(0, Test::Is(AF_NETLINK)), (2, Test::Is(NETLINK_ROUTE))],
];

const STREAM: Test = Test::Only(SOCK_FLAGS | 1);
const DGRAM: Test = Test::Only(SOCK_FLAGS | 2);
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
const AF_UNIX: u32 = 1;
const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const AF_NETLINK: u32 = 16;
const NETLINK_ROUTE: u32 = 0;
const SOL_SOCKET: u32 = 1;
const SO_LINGER: u32 = 13;
const SOCK_FLAGS: u64 = 0o2_004_000;
const TIOCSTI: u32 = 0x5412;
const TIOCLINUX: u32 = 0x541C;
const TIOCSETD: u32 = 0x5423;

/// `CLONE_NEWTIME | NEWNS | NEWCGROUP | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET`.
const CLONE_NEW_ANY: u64 = 0x7E02_0080;

/// Refused with ENOSYS rather than EPERM, so that programs take the fallback they have.
pub(super) const ABSENT: &[(&str, &str)] = &[
    ("clone3", "its flags lie in memory where a filter cannot see them; libc falls back to clone"),
    ("splice", "moves pages of read-only files into pipes: the vehicle of page-cache write bugs"),
    ("tee", "as splice"),
    ("vmsplice", "as splice"),
    ("io_uring_setup", "a second system call interface that no filter sees"),
    ("io_uring_enter", "as io_uring_setup"),
    ("io_uring_register", "as io_uring_setup"),
];

// Left out on purpose, and so refused with EPERM:
//
// mount, umount2, pivot_root, chroot, fsopen, fsconfig, fsmount, fspick, open_tree, open_tree_attr,
//   move_mount, mount_setattr, statmount, listmount: the file system is fixed;
// unshare, setns: namespaces are fixed, and each would bring back capabilities;
// ptrace, process_vm_readv, process_vm_writev, process_madvise, process_mrelease, pidfd_getfd,
//   kcmp: looking into other processes;
// bpf, perf_event_open, userfaultfd, fanotify_*, lookup_dcookie, memfd_secret: the kernel's
//   favourite places for bugs, or tools to exploit them;
// add_key, request_key, keyctl: keyrings are not namespaced;
// open_by_handle_at, name_to_handle_at: reach files without a path;
// init_module, finit_module, delete_module, kexec_*, reboot, swapon, swapoff, acct, quotactl*,
//   syslog, sethostname, setdomainname, iopl, ioperm, modify_ldt, vhangup, nfsservctl:
//   the machine's administration;
// settimeofday, clock_settime, clock_adjtime, adjtimex: there is one clock;
// migrate_pages, move_pages, set_mempolicy_home_node: memory of others.
