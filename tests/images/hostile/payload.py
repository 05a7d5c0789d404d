"""What a hostile image runs wherever its Python starts, above all while the image is loaded for later kernels.

`look(way)` tries to reach everything that a sandbox must not reach, and remembers the outcome in `sys.hostile`, a list
which later kernels have too, since they begin with that memory. Each outcome has `reached` (must stay empty) and `seen`
(what the test compares with what it knows of the host).
"""

import contextlib
import ctypes
import json
import os
import resource
import socket
import stat
import sys

CONFIG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "hostile_config.json")
KINDS = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
CLONE_NEWUSER, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUTS = 0x10000000, 0x20000, 0x20000000, 0x4000000
UNFIT = "mnt:[ net:[ user:[ pid:[ ipc:[ uts:[ cgroup:[ pidfd /cgroup".split()
libc = ctypes.CDLL(None, use_errno=True)


def look(way):
    """Never raises: a payload that fails to start would be found out."""
    if on_the_host():
        return
    outcome = {"way": way, "argv": list(getattr(sys, "orig_argv", sys.argv)), "reached": [], "seen": {}, "failed": []}
    for search in (privileges, identity, processes, namespaces, roots, descriptors, mounts, files, network, groups):
        try:
            search(outcome["reached"], outcome["seen"])
        except BaseException as error:
            outcome["failed"].append(f"{search.__name__}: {error!r}")
    if not hasattr(sys, "hostile"):
        sys.hostile = json.loads(os.environ.pop("HOSTILE_BEFORE", "[]"))
    sys.hostile.append(outcome)


def on_the_host():
    """In no user namespace at all? Then there is nothing left to reach: says so to the test, and does nothing. What is
    tried below would harm the machine."""
    try:
        mapped = open("/proc/self/uid_map").read().split()
    except OSError:
        return True
    if mapped != ["0", "0", "4294967295"]:
        return False
    try:
        with open(json.load(open(CONFIG))["caught"], "a") as file:
            file.write(f"{getattr(sys, 'orig_argv', sys.argv)}\n")
    except OSError:
        pass
    return True


def status():
    return dict(line.rstrip("\n").split(":\t", 1) for line in open("/proc/self/status") if ":\t" in line)


def privileges(reached, seen):
    now = status()
    sets = {name: now[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    held = {name: value for name, value in sets.items() if int(value, 16)}
    if held:
        reached.append(f"capabilities {held}")
    if now["NoNewPrivs"] != "1":
        reached.append("no_new_privs is not set")
    if now["Seccomp"] != "2":
        reached.append("there is no seccomp filter")
    if resource.getrlimit(resource.RLIMIT_CORE) != (0, 0):
        reached.append("core dumps are possible")
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if files == resource.RLIM_INFINITY or files > 4096:
        reached.append(f"it may open {files} files")


def identity(reached, seen):
    for name in ("uid_map", "gid_map"):
        lines = [tuple(map(int, line.split())) for line in open(f"/proc/self/{name}")]
        seen[name] = lines
        if len(lines) != 1 or lines[0][2] > 4096:
            reached.append(f"{name} is {lines}")
    if 0 in (os.getuid(), os.geteuid(), os.getgid()) or os.getgroups():
        reached.append(f"it is uid {os.getuid()}, gid {os.getgid()}, groups {os.getgroups()}")


def numbers():
    return [name for name in os.listdir("/proc") if name.isdigit()]


def processes(reached, seen):
    levels = status()["NSpid"].split()
    if levels != [str(os.getpid())]:
        reached.append(f"/proc is that of an outer PID namespace: {levels}")
    seen["processes"] = {}
    for number in numbers():
        try:
            words = open(f"/proc/{number}/cmdline", "rb").read()
        except OSError:
            continue
        seen["processes"][number] = words.replace(b"\0", b" ").decode("utf-8", "replace").strip()
    for number in numbers():
        if number in ("1", str(os.getpid()), str(os.getppid())):
            continue
        try:
            os.kill(int(number), 0)
            reached.append(f"may signal {number}: {seen['processes'].get(number)}")
        except OSError:
            pass


def in_child(action):
    """Whether `action` works; in a process of its own, which may be killed for it."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if action() else 1)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def namespaces(reached, seen):
    """Everything that is not our own namespace must be out of sight; let alone joined."""
    own = {kind: os.stat(f"/proc/self/ns/{kind}").st_ino for kind in KINDS}
    for number in numbers():
        for kind in KINDS:
            try:
                link = os.open(f"/proc/{number}/ns/{kind}", os.O_RDONLY)
            except OSError:
                continue
            try:
                if os.fstat(link).st_ino == own[kind]:
                    continue
                joined = in_child(lambda link=link: libc.setns(link, 0) == 0)
                reached.append(f"{'joins' if joined else 'sees'} the {kind} namespace of process {number}")
                if joined and kind == "mnt":
                    reached.extend(f"process {number} has {name}" for name in secrets_after(link))
            finally:
                os.close(link)


def secrets_after(link):
    """What can be read in another mount namespace; tried in a child, which tells by a pipe."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            libc.setns(link, 0)
            for name in ("/session/secret", "/etc/shadow", "/etc/passwd"):
                with contextlib.suppress(OSError):
                    os.write(writer, f"{name}: {open(name).read()[:80]!r}\n".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader) as reply:
        lines = reply.read().splitlines()
    os.waitpid(child, 0)
    return lines


def content(path):
    try:
        with open(path, "rb") as file:
            return file.read(4096)
    except OSError:
        return None


def roots(reached, seen):
    """Files of others, by their root and their working directory. Our own root shows the same files, and is no news."""
    for number in numbers():
        for place in ("root", "cwd", "root/proc/1/root"):
            for name in ("session/secret", "secret", "etc/passwd", "etc/shadow", "var/lib/belljar"):
                path = f"/proc/{number}/{place}/{name}"
                if os.path.isdir(path) and not os.path.isdir(f"/{name}"):
                    reached.append(f"{path} is there")
                text = content(path)
                if text is not None and text != content(f"/{name}") and text != content(name):
                    reached.append(f"{path}: {text[:60]!r}")
    passwd = content("/etc/passwd") or b""
    if b":/root:" in passwd:
        reached.append(f"/etc/passwd is the host's: {passwd[:60]!r}")


def descriptors(reached, seen):
    seen["descriptors"] = {}
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            info, link = os.fstat(number), os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue
        seen["descriptors"][number] = link
        try:
            same = os.path.samestat(info, os.stat(link))
        except OSError:
            same = False
        if stat.S_ISDIR(info.st_mode) or stat.S_ISBLK(info.st_mode) or any(word in link for word in UNFIT):
            reached.append(f"descriptor {number} is {link}")
        elif stat.S_ISREG(info.st_mode) and info.st_nlink and not same and not link.startswith("/memfd:"):
            reached.append(f"descriptor {number} is a file from elsewhere, {link}")


def mounts(reached, seen):
    attempts = {
        "mounts a tmpfs": lambda: libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0,
        "mounts a proc": lambda: libc.mount(b"proc", b"/tmp", b"proc", 0, None) == 0,
        "binds /": lambda: libc.mount(b"/", b"/tmp", None, 4096, None) == 0,
        "makes / writable": lambda: libc.mount(b"none", b"/", None, 32 | 4096, None) == 0,
        "unmounts /proc": lambda: libc.umount2(b"/proc", 2) == 0,
        "makes a user namespace": lambda: libc.unshare(CLONE_NEWUSER) == 0,
        "makes a mount namespace": lambda: libc.unshare(CLONE_NEWNS) == 0,
        "makes a PID namespace": lambda: libc.unshare(CLONE_NEWPID) == 0,
        "changes its root": lambda: libc.chroot(b"/tmp") == 0,
        "becomes root": lambda: libc.setresuid(0, 0, 0) == 0,
        "makes a device": lambda: os.mknod("/tmp/hostile-device", stat.S_IFBLK | 0o600, os.makedev(8, 0)) is None,
        "sets the host name": lambda: libc.sethostname(b"hostile", 7) == 0,
    }

    def aside(attempt):
        # Whoever may do all this may also do it where it harms nobody, us included, who shall live to tell.
        libc.unshare(CLONE_NEWNS | CLONE_NEWUTS)
        return attempt()

    reached.extend(name for name, attempt in attempts.items() if in_child(lambda attempt=attempt: aside(attempt)))
    seen["mounts"] = [line.split()[4] for line in open("/proc/self/mountinfo")]


def files(reached, seen):
    for place in ("/", "/usr", "/etc", "/opt", "/opt/belljar/kernels", "/usr/lib", "/dev", "/proc/sys/kernel"):
        path = os.path.join(place, "hostile-file")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
            reached.append(f"writes to {place}")
        except OSError:
            pass
    for path in ("/sys", "/var/lib/belljar", "/root", "/home", "/boot", "/run/docker.sock", "/dev/sda", "/dev/mem"):
        if (os.path.isdir(path) and os.listdir(path)) or (os.path.exists(path) and not os.path.isdir(path)):
            reached.append(f"{path} is there")
    for path in json.load(open(CONFIG))["files"]:
        if os.path.exists(path):
            reached.append(f"{path} is there")
    # Left for whoever comes after us; sessions must not find it.
    try:
        with open("/tmp/hostile-leftover", "w") as file:
            file.write("left by an image")
    except OSError:
        pass


def network(reached, seen):
    config = json.load(open(CONFIG))
    seen["interfaces"] = sorted({line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]})
    targets = [(socket.AF_INET, ("127.0.0.1", config["port"])), (socket.AF_UNIX, "\0" + config["abstract"])]
    for family, address in targets:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.settimeout(3)
                probe.connect(address)
            reached.append(f"connects to {address}")
        except OSError:
            pass
    if socket.gethostname() == config["host_name"]:
        reached.append("knows the host's name")


def groups(reached, seen):
    seen["cgroups"] = [line.strip().split(":", 2)[2] for line in open("/proc/self/cgroup")]
    if any(path != "/" for path in seen["cgroups"]):
        reached.append(f"sees its place among the host's control groups: {seen['cgroups']}")
    if any(" - cgroup" in line for line in open("/proc/self/mountinfo")):
        reached.append("a tree of control groups is mounted")
