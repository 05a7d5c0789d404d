"""Servers for tests, each in its own directory, and a proxy that cuts connections."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx

REPOSITORY = Path(__file__).resolve().parents[3]
PATIENCE = 30.0
#: A file with an API key and the settings of a gateway, if a cluster is tested. `make test-gateway` sets it.
CLUSTER = os.environ.get("CLUSTER_TO_TEST")
#: The control groups of servers that the tests have started, to check later that they are removed.
MADE_GROUPS: set[str] = set()


def binary() -> str:
    named = os.environ.get("BELLJAR_BINARY")
    builds = [REPOSITORY / "target" / kind / "belljar" for kind in ("release", "debug")]
    for candidate in [Path(named)] if named else builds:
        if os.access(candidate, os.X_OK):
            return str(candidate.resolve())
    raise RuntimeError("no belljar to test: build one, or name it with BELLJAR_BINARY")


def python_path() -> str:
    """PYTHONPATH for programs of the tests: the package, and our own PYTHONPATH."""
    source = str(REPOSITORY / "sdk" / "python" / "src")
    return os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))


def content_of(link: str) -> bytes:
    """What a link to an artifact leads to: a file of this machine, or what a server sends."""
    parts = urlsplit(link)
    return Path(parts.path).read_bytes() if parts.scheme == "file" else httpx.get(link).raise_for_status().content


# Seconds that sandboxes may exist after their server was killed: they wait for another one.
GROUP_PATIENCE = 10.0


class Leftovers:
    """What this run of the tests creates: a directory, processes, control groups."""

    def __init__(self) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="bj-"))
        self._groups = _groups()

    def found(self) -> list[str]:
        """Waits until everything is removed; returns what is left, and removes the directory."""
        deadline = time.monotonic() + PATIENCE
        while (found := self._now()) and time.monotonic() < deadline:
            time.sleep(0.1)
        shutil.rmtree(self.scratch, ignore_errors=True)
        return found

    def _now(self) -> list[str]:
        # Control groups of other programs have other names.
        groups = [f"control group {name}" for name in _groups() - self._groups if name in MADE_GROUPS]
        # pytest removes its own, later.
        paths = [path for path in self.scratch.iterdir() if not path.name.startswith("pytest-of-")]
        directories = [f"directory {path}" for path in paths]
        return groups + directories + [f"process {line}" for line in _processes(str(self.scratch))]


def _groups() -> set[str]:
    roots = [Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*/")]
    return {path.name for root in roots for path in root.glob("belljar-*")}


def _processes(about: str) -> list[str]:
    """Other processes with this text in their arguments or environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            arguments = (process / "cmdline").read_bytes()
            # A process without arguments is a zombie.
            said = arguments + (process / "environ").read_bytes()
            if arguments and about.encode() in said and int(process.name) != os.getpid():
                found.append(f"{process.name}: {arguments.replace(bytes(1), b' ').decode(errors='replace')}")
    return found


class Server:
    """A `belljar serve` that can be killed and started again in the same directory."""

    def __init__(self, directory: Path, *, tcp: bool = False, **env: str) -> None:
        self.directory = directory
        self.socket = directory / "s.sock"
        self.url = f"unix:{self.socket}"
        self._tcp = tcp
        self._command = ["serve", "--stop-sessions"]
        self._arguments = ["--listen", "127.0.0.1:0"] if tcp else ["--unix", str(self.socket)]
        self._cgroup = f"belljar-sdk-{uuid.uuid4().hex[:12]}"
        MADE_GROUPS.add(self._cgroup)
        self._process: subprocess.Popen[bytes] | None = None
        places = {
            "BELLJAR_STATE_DIR": "state",
            "SESSIONS_ROOT": "sessions",
            "BLOBSTORE_DIR": "blobs",
            "BELLJAR_DATASET_CACHE": "cache",
            "BELLJAR_VOLUMES_DIR": "volumes",
            "BELLJAR_RUN_DIR": "run",
            "BELLJAR_OUTPUTS_DIR": "outputs",
            "BELLJAR_EXPORTS_DIR": "exports",
        }
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "BELLJAR_HOME") if name in os.environ}
        self.env = {
            **inherited,
            **{name: str(directory / place) for name, place in places.items()},
            "BELLJAR_CGROUP_PARENT": self._cgroup,
            # No preloading and no pool, so that it starts at once. If the tests are killed, its sandboxes end soon.
            "BELLJAR_PRELOAD": "json",
            "BELLJAR_POOL": "0",
            "BELLJAR_ALONE": "60",
            **env,
        }

        self._remember_limits()

    def _remember_limits(self) -> None:
        """Writes the result of the server's self-test, which takes time and has its own tests. If the format has
        changed, the server tests its limits again."""
        run_dir = self.directory / "run"
        run_dir.mkdir(mode=0o700)
        version = subprocess.run([binary(), "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
        circumstances = {
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "version": version,
            "uid": os.getuid(),
            "cgroup_parent": self._cgroup,
            "backend": "native",
            "sets_limits": True,
            "cgroup": Path("/proc/self/cgroup").read_text(),
        }
        names = ["network", "processes", "memory", "cpu"]
        verdicts = [{"limit": name, "enforced": True, "detail": "as before"} for name in names]
        remembered = {"circumstances": circumstances, "verdicts": verdicts}
        (run_dir / "selftest.json").write_text(json.dumps(remembered))

    def command(self, *arguments: str) -> str:
        done = subprocess.run([binary(), *arguments], env=self.env, capture_output=True, check=True, cwd=self.directory)
        return done.stdout.decode().strip()

    def start(self) -> Server:
        with open(self.directory / "log", "ab") as log:
            begin = log.tell()
            self._process = subprocess.Popen(
                [binary(), *self._command, *self._arguments],
                env=self.env,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        said = self._wait_for_announcement(begin)
        if self._tcp:
            self.url = said
            # The next server must have the same address.
            self._arguments = ["--listen", said.removeprefix("http://")]
        return self

    def _wait_for_announcement(self, begin: int) -> str:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            said = (self.directory / "log").read_bytes()[begin:].decode()
            found = re.search(r"listens on (\S+)", said)
            if found:
                return found[1]
            assert self._process is not None
            assert self._process.poll() is None, said
            time.sleep(0.01)
        raise AssertionError("the server did not start")

    def connect(self) -> socket.socket:
        """A new connection to it."""
        if self._tcp:
            host, port = self.url.removeprefix("http://").split(":")
            return socket.create_connection((host, int(port)))
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.socket))
        return connection

    def kill(self) -> None:
        """Kills the server with SIGKILL. Sessions live on."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        remove_groups(self._cgroup)
        shutil.rmtree(self.directory, ignore_errors=True)


class Gateway(Server):
    """A gateway of the cluster that is tested. To clients it is a server. Its nodes and their sessions outlive it."""

    def __init__(self, directory: Path) -> None:
        assert CLUSTER is not None
        cluster = json.loads(Path(CLUSTER).read_text())
        self.key = cluster["key"]
        super().__init__(directory, tcp=True, **cluster["env"])
        self._command = ["gateway"]


def remove_groups(name: str) -> None:
    """Removes the control groups of a server, as soon as the last of its processes has ended."""
    MADE_GROUPS.add(name)
    deadline = time.monotonic() + GROUP_PATIENCE
    while (trees := [*Path("/sys/fs/cgroup").glob(f"*/{name}"), *Path("/sys/fs/cgroup").glob(name)]) != []:
        for tree in trees:
            for directory, _, _ in os.walk(tree, topdown=False):
                with suppress(OSError):
                    os.rmdir(directory)
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


class CuttingProxy:
    """A proxy between a client and a server that cuts connections after a number of bytes of the response."""

    def __init__(self, server: Server, path: Path) -> None:
        self.url = f"unix:{path}"
        self._server = server
        #: After how many bytes each of the next connections is cut; later ones are not.
        self.cuts: list[int] = []
        self.connections = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            try:
                server = self._server.connect()
            except OSError:
                client.close()
                continue
            limit = self.cuts.pop(0) if self.cuts else None
            threading.Thread(target=_pump, args=(client, server, None), daemon=True).start()
            threading.Thread(target=_pump, args=(server, client, limit), daemon=True).start()


def _pump(source: socket.socket, target: socket.socket, limit: int | None) -> None:
    try:
        while data := source.recv(65536 if limit is None else min(65536, limit)):
            target.sendall(data)
            if limit is not None:
                limit -= len(data)
                if limit <= 0:
                    break
    except OSError:
        pass
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
