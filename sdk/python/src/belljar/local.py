"""The local server: one per user, shared by all programs of the user.

```text
   ensure() ── does a server respond on the socket? ── yes ──▶ path of the socket
                 │ no
                 ▼ one program at a time (lock)
               does one respond now? ── yes ──▶ path of the socket
                 │ no
                 ▼
               `belljar serve --unix SOCKET`, detached ──▶ ready ──▶ path of the socket
                                                        └▶ ended, or not ready in time: error with its log
```

Its files are in directories that only the user can enter. This is checked before anything is sent to a socket, because
anyone can create a directory in `/tmp` and listen there. The process behind the socket must belong to the user as well,
according to the kernel. The socket and the lock are in `$XDG_RUNTIME_DIR/belljar-local`, or in the data directory. That
holds everything else: `~/.local/share/belljar/local` (or `$XDG_DATA_HOME/belljar/local`). The `belljar` command finds
the server in the same way (`crates/belljar/src/settings/local.rs`).

The server has the settings of the program that started it: `BELLJAR_MEMORY` and so on, from the environment and from
`.env` in the current directory. It gets no other variables, above all no API keys, unless tools need one
(`pass_model_key`). If the settings of another program differ, that program requests them with every session
(`adjusted`), and a warning names those that only a server can have.

Some settings, such as the directory of datasets, exist once per server, and programs may need different values:
`LocalServer({"DATASETS_HOST_RO": ...})` is another server, shared by all programs with the same values.
`LocalServer.from_settings()` is the one that the current settings select.

    python -m belljar.local status
    python -m belljar.local stop
"""

from __future__ import annotations

import fcntl
import hashlib
import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from belljar import _settings
from belljar._variables import DEFAULTS, INTERNAL, SECRET
from belljar.errors import BelljarError, InvalidRequest, LocalServerError

__all__ = ["LocalServer", "ensure", "is_running", "is_set_up", "log_path", "stop"]

# Seconds until a server must be ready: it first recovers the sessions of the previous one.
_START_PATIENCE = 60.0
_START_PACE = 0.02
# Seconds to wait for the lock: another program may be starting the server.
_LOCK_PATIENCE = _START_PATIENCE + 10.0
_LOCK_PACE = 0.02
# Seconds to wait for a server that stops: it gives open requests 10 seconds to finish.
_STOP_PATIENCE = 20.0
_PROBE_TIMEOUT = 5.0
# Seconds without sessions and requests after which the server ends by itself.
_IDLE_EXIT = 900
# The same for servers with settings of their own: another server may need their directories.
_IDLE_EXIT_OWN = 60
# How many lines of the log an error quotes, and how many bytes of log are kept.
_QUOTED_LINES = 12
_MAX_LOG = 4 << 20
# The longest path of a socket, with its final NUL; the server first binds a name that is 16 bytes longer.
_MAX_SOCKET_PATH = 108 - 20

# Variables of the environment that a server needs.
_PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS",
)  # fmt: skip
# Settings that exist once per server and that programs may need with different values: each combination of values has
# its own server.
OWN = ("ARTIFACTS_DB", "BLOBSTORE_DIR", "DATASETS_HOST_RO", "IDLE_HIBERNATE_SEC", "SESSIONS_ROOT")
# Two servers cannot share these.
_EXCLUSIVE = ("ARTIFACTS_DB", "BLOBSTORE_DIR")
# Settings that are paths. Relative ones are relative to this program's directory, not the server's.
_PATHS = (
    "ARTIFACTS_DB", "BLOBSTORE_DIR", "DATASETS_HOST_RO", "SESSIONS_ROOT", "BELLJAR_DATASET_CACHE",
    "BELLJAR_EXPORTS_DIR", "BELLJAR_SNAPSHOT_DIR", "BELLJAR_HOME", "BELLJAR_OUTPUTS_DIR", "BELLJAR_RUN_DIR",
    "BELLJAR_SOCKET_DIR", "BELLJAR_STATE_DIR", "BELLJAR_VOLUMES_DIR",
)  # fmt: skip
# Settings that are JSON, or the path of a JSON file. `${NAME}` in it is a variable that the server needs too.
_WITH_VARIABLES = ("BELLJAR_DATASET_SOURCES", "BELLJAR_NETWORK_SECRETS")
# Settings of clients, and settings for servers with an address.
_NOT_PASSED_ON = {
    "BELLJAR_BINARY", "BELLJAR_URL", "BELLJAR_API_KEY", "BELLJAR_LISTEN", "BELLJAR_UNIX", "BELLJAR_TLS_CERT",
    "BELLJAR_TLS_KEY",
    # A local server keeps artifacts in a directory. Many programs have these keys for their own purposes.
    "BELLJAR_BLOBS_URL", "AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY",
}  # fmt: skip
# A model's API key, which most programs have for their own purposes: it is passed on only if tools need it.
MODEL_KEY = ("OPENAI_API_KEY", "OPENAI_BASE_URL")
_passes_model_key = False
# Other names for the server's default image.
DEFAULT_IMAGES = {
    "sandbox", "sandbox:latest", "py-sandbox:latest", "python-agent-sandbox:latest", "python-chart-sandbox:latest",
    "local/sandbox-py311-rdkit:latest",
}  # fmt: skip

_BARE = (
    "belljar: sandboxes have the plain Python of this machine, without numpy, pandas and matplotlib; "
    "`sandbox-setup` installs these packages for sandboxes, once (about a minute and 600 MB)"
)


# Sockets of local servers that this program knows: it sends requests there only to the user's own server.
_own_sockets: set[str] = set()


class LocalServer:
    """The paths of the user's local server, or of the one with these `settings`. It may not be running."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.settings = dict(settings or {})
        text = "".join(f"{name}={value}\n" for name, value in sorted(self.settings.items()))
        suffix = f"-{_digest(os.fsencode(text))}" if text else ""
        data_home = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
        self.data = Path(data_home, "belljar", f"local{suffix}")
        runtime = os.environ.get("XDG_RUNTIME_DIR")
        self.runtime = Path(runtime, f"belljar-local{suffix}") if runtime else self.data / "run"
        if len(os.fsencode(self.runtime / "server.sock")) >= _MAX_SOCKET_PATH:
            short = f"belljar-{os.getuid()}-{_digest(os.fsencode(self.runtime))}"
            self.runtime = Path(os.environ.get("TMPDIR") or "/tmp", short)
        self.socket = self.runtime / "server.sock"
        self.lock = self.runtime / "lock"
        self.log = self.data / "server.log"
        _own_sockets.add(str(self.socket))

    @staticmethod
    def from_settings(overrides: Mapping[str, str | None] | None = None) -> LocalServer:
        """The server that the environment and `.env` select."""
        asked = {**_settings.read(), **(overrides or {})}
        settings = {name: value for name in OWN if (value := asked.get(name))}
        return LocalServer(
            {name: _settings.absolute(value) if name in _PATHS else value for name, value in settings.items()}
        )

    def make_directories(self) -> None:
        for directory in (self.data, self.runtime):
            _make_private(directory)


def ensure(server: LocalServer | None = None) -> str:
    """The path of the local server's socket. Starts the server if it does not run."""
    server = server or LocalServer.from_settings()
    if _is_ready(server.socket):
        return str(server.socket)
    server.make_directories()
    with _locked(server.lock):
        if not _is_ready(server.socket):
            _start(server)
    return str(server.socket)


def pass_model_key() -> None:
    """Makes servers that this program starts get the API key of the model for browser tasks, for their proxy."""
    global _passes_model_key
    _passes_model_key = True


def is_running() -> bool:
    """Whether the local server responds. Raises if its directory does not belong to the user."""
    return _is_ready(LocalServer.from_settings().socket)


def is_set_up() -> bool:
    """Whether `belljar setup` has installed numpy, pandas and other packages for sandboxes.

    Without them, sandboxes have the plain Python of this machine.
    """
    return manifest_path().is_file()


def manifest_path() -> Path:
    """The file that `belljar setup` writes last, when everything is installed."""
    return _home() / "python" / "belljar.json"


def log_path() -> Path:
    """The log file of the local server."""
    return LocalServer.from_settings().log


def stop(server: LocalServer | None = None) -> bool:
    """Stops the local server; false if it did not run.

    Its sessions go on, and the next server takes them over. Stop sessions that are not needed any more first.
    """
    server = server or LocalServer.from_settings()
    if not _is_own(server.runtime):
        return False
    with _locked(server.lock):
        pid = _pid_of(server.socket)
        if pid is None:
            return False
        return _end(pid)


# Settings that a session or run can request: the field of the request, and how to convert the value.
_PER_SESSION: dict[str, tuple[str, Callable[[str], Any]]] = {
    "BELLJAR_MEMORY": ("limits.memory", str),
    "BELLJAR_CPUS": ("limits.cpus", float),
    "BELLJAR_PIDS": ("limits.pids", int),
    "TMPFS_SIZE_MB": ("limits.tmpfs", lambda value: f"{int(value)}M"),
    "SESSION_STORAGE": ("storage", str.upper),
    "DATASET_ACCESS": ("datasets", lambda value: value.upper().replace("API_TMPFS", "API")),
    "BELLJAR_TTL": ("ttl", int),
    "BELLJAR_IDLE_TIMEOUT": ("idle_timeout", int),
    "SANDBOX_IMAGE": ("image", str),
    "SANDBOX_IMAGE_NAME": ("image", str),
    "BELLJAR_NETWORK": ("network", lambda value: value if value in ("none", "open") else {"allow": value.split()}),
}
# Fields that a run has too.
_RUN_FIELDS = ("limits", "datasets", "image", "network")

# Warnings that were logged, by process of the server or 0, and setting or session.
_warned: set[tuple[int, str]] = set()


def adjusted(server: LocalServer, body: Mapping[str, Any], is_run: bool) -> Mapping[str, Any]:
    """The request for a session or a run, with those settings of this program that differ from the local server's.

    A warning names settings that cannot be requested.
    """
    explicit = _settings.read()
    wanted = {name for name in explicit if name in DEFAULTS and name not in {*_NOT_PASSED_ON, *MODEL_KEY, *OWN}}
    if not wanted:
        return body
    theirs = _environment_of(server)
    if theirs is None:
        return body
    pid, theirs_settings = theirs
    ours = _environment(server)
    differing = {name: ours[name] for name in sorted(wanted) if name in ours and _differs(name, ours, theirs_settings)}
    asked = dict(body)
    for name in list(differing):
        if _can_ask(name, differing[name], theirs_settings):
            _ask(asked, name, differing.pop(name), is_run)
    _warn_about_settings(pid, differing, theirs_settings)
    return asked


def _differs(name: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    if name in ("SANDBOX_IMAGE", "SANDBOX_IMAGE_NAME") and ours[name] in DEFAULT_IMAGES:
        return False
    return ours[name] != (theirs.get(name) or DEFAULTS[name])


def _can_ask(name: str, value: str, theirs: Mapping[str, str]) -> bool:
    if name == "BELLJAR_NETWORK":
        # Without BELLJAR_MAX_NETWORK a server allows only its own default.
        return value == "none" or bool(theirs.get("BELLJAR_MAX_NETWORK"))
    # A session cannot request to have no idle timeout.
    return name in _PER_SESSION and not (name == "BELLJAR_IDLE_TIMEOUT" and value == "0")


def _ask(body: dict[str, Any], name: str, value: str, is_run: bool) -> None:
    field, convert = _PER_SESSION[name]
    field, _, part = field.partition(".")
    if is_run and field not in _RUN_FIELDS:
        return
    if is_run and field == "datasets" and value.upper() != "LOCAL_RO":
        # A run has no time to stage datasets.
        return
    try:
        converted = convert(value)
    except ValueError:
        raise InvalidRequest(f"{name}={value}: expected a number") from None
    if not part:
        body.setdefault(field, converted)
    elif part not in body.get(field, {}):
        body[field] = {**body.get(field, {}), part: converted}


def _warn_about_settings(pid: int, differing: Mapping[str, str], theirs: Mapping[str, str]) -> None:
    """Logs which settings have no effect, and what to do; once for every server."""
    new = [name for name in differing if (pid, name) not in _warned]
    if not new:
        return
    import logging

    _warned.update((pid, name) for name in new)
    differences = ", ".join(_comparison(name, differing[name], theirs) for name in new)
    logging.getLogger("belljar").warning(
        f"belljar: the local server was started with other settings: {differences}. To use yours, stop it with "
        "`python -m belljar.local stop`; the next program starts it again, and its sessions are kept"
    )


def warn_about_session(session_id: str, conflict: str) -> None:
    """Logs that a live session has other settings than ours, once."""
    if (0, session_id) not in _warned:
        import logging

        _warned.add((0, session_id))
        logging.getLogger("belljar").warning(f"belljar: {conflict}; it goes on as it is until it is stopped")


def _comparison(name: str, value: str, theirs: Mapping[str, str]) -> str:
    if name in SECRET:
        return f"another {name}"
    there = theirs.get(name) or DEFAULTS[name]
    return f"{name} is {there if there else 'not set'} there and {value} here"


def _environment_of(server: LocalServer) -> tuple[int, dict[str, str]] | None:
    """The process of the local server, and the settings that it was started with. Starts the server if it does not run.

    None if that cannot be determined.
    """
    pid = _pid_of(server.socket)
    if pid is None:
        ensure(server)
        pid = _pid_of(server.socket)
    if pid is None:
        return None
    settings = _settings_of(pid)
    return None if settings is None else (pid, settings)


def _settings_of(pid: int) -> dict[str, str] | None:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    pairs = (os.fsdecode(variable).partition("=") for variable in variables if variable)
    return {name: value for name, _, value in pairs}


def _make_room(server: LocalServer, environment: Mapping[str, str]) -> None:
    """Stops other local servers of this user that hold directories which this one needs, if they have no sessions.

    For example the server of the same project before its settings were changed. A server with sessions is left alone,
    and then the new server fails with an error that names the directory.
    """
    wanted = {(name, environment.get(name)) for name in _EXCLUSIVE if environment.get(name)}
    nearby = [*server.runtime.parent.glob("belljar-local*"), *server.data.parent.glob("local*/run")]
    for directory in nearby:
        try:
            pid = _pid_of(directory / "server.sock") if directory != server.runtime else None
        except LocalServerError:
            # It belongs to another user.
            continue
        settings = (_settings_of(pid) if pid is not None else None) or {}
        if pid is not None and wanted & set(settings.items()) and _has_no_sessions(directory / "server.sock"):
            _end(pid)


def _has_no_sessions(path: Path) -> bool:
    connection = _Connection(path)
    try:
        connection.request("GET", "/healthz")
        return bool(json.loads(connection.getresponse().read())["sessions"] == 0)
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return False
    finally:
        connection.close()


def _digest(name: bytes) -> str:
    return hashlib.sha256(name).hexdigest()[:12]


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _is_own(directory) and directory.lstat().st_mode & 0o077:
            directory.chmod(0o700)
    except OSError as error:
        raise LocalServerError(
            f"failed to create the directory `{directory}` for the local server: {error.strerror}",
            hint="set XDG_DATA_HOME to a writable directory, or BELLJAR_URL to the address of a running server",
        ) from error


def may_talk_to(path: str) -> bool:
    """Whether this socket may be a server of this user; raises if its directory belongs to another user.

    Only sockets of local servers are checked: any other socket was chosen by the user.
    """
    return path not in _own_sockets or _is_own(Path(path).parent)


def _is_own(directory: Path) -> bool:
    """Whether the directory exists; raises if other users could create sockets in it."""
    try:
        found = os.lstat(directory)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise LocalServerError(
            f"`{directory}` is not a directory of yours, or others can write to it: its server cannot be trusted",
            hint="remove it, or set XDG_RUNTIME_DIR",
        )
    return True


def _peer(client: socket.socket) -> tuple[int, int]:
    """The process at the other end of a socket and its user, according to the kernel."""
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One program at a time. The kernel releases the lock when the process ends."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LocalServerError(f"another program holds the lock `{path}` for too long") from None
                time.sleep(_LOCK_PACE)
        yield
    finally:
        os.close(descriptor)


class _Connection(http.client.HTTPConnection):
    """HTTP over a UNIX socket, without importing httpx, which is slow."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_PROBE_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
        if _peer(self.sock)[1] != os.getuid():
            raise PermissionError(f"`{self._path}` belongs to another user")


def _is_ready(path: Path) -> bool:
    if not _is_own(path.parent):
        return False
    connection = _Connection(path)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _pid_of(path: Path) -> int | None:
    """The process behind a socket, according to the kernel: a file with its id might be out of date."""
    if not _is_own(path.parent):
        return None
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        try:
            client.connect(str(path))
        except OSError:
            return None
        pid, uid = _peer(client)
        return pid if uid == os.getuid() and pid > 0 else None


def _end(pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        ended, _, _ = select.select([descriptor], [], [], _STOP_PATIENCE)
        if not ended:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            select.select([descriptor], [], [], _STOP_PATIENCE)
    except ProcessLookupError:
        pass
    finally:
        os.close(descriptor)
    return True


def find_binary() -> str:
    """The `belljar` program: named by BELLJAR_BINARY, beside this Python, or on the PATH."""
    named = os.environ.get("BELLJAR_BINARY")
    if named:
        if not os.access(named, os.X_OK):
            raise LocalServerError(f"BELLJAR_BINARY is `{named}`, which is not an executable file")
        return os.path.abspath(named)
    schemes = [sysconfig.get_path("scripts")]
    if "posix_user" in sysconfig.get_scheme_names():
        schemes.append(sysconfig.get_path("scripts", "posix_user"))
    for directory in schemes:
        if directory and os.access(os.path.join(directory, "belljar"), os.X_OK):
            return os.path.join(directory, "belljar")
    found = shutil.which("belljar")
    if found is None:
        raise LocalServerError(
            "the program `belljar` was not found, so the local server cannot be started",
            hint="install the wheel, set BELLJAR_BINARY to the program, or BELLJAR_URL to the address of a server",
        )
    return found


def _home() -> Path:
    """The directory with the Python of sandboxes; see BELLJAR_HOME in docs/settings.md."""
    named = _settings.read().get("BELLJAR_HOME")
    if named:
        return Path(_settings.absolute(named))
    if os.getuid() == 0:
        return Path("/var/lib/belljar")
    return Path(os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share"), "belljar")


def _warn_if_bare() -> None:
    """Logs that sandboxes have no packages; once per server, not per program."""
    if not is_set_up():
        import logging

        logging.getLogger("belljar").warning(_BARE)


def _start(server: LocalServer) -> None:
    binary = find_binary()
    _warn_if_bare()
    arguments = [binary, "serve", "--unix", str(server.socket)]
    environment = _environment(server)
    if server.settings:
        _make_room(server, environment)
    if _knows_idle_exit(binary, environment):
        arguments += ["--idle-exit", str(_IDLE_EXIT_OWN if server.settings else _IDLE_EXIT)]
    with _open_log(server.log) as log:
        begin = log.seek(0, os.SEEK_END)
        try:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=server.data,
                env=environment,
                # Ctrl-C in this program must not stop the server.
                start_new_session=True,
            )
        except OSError as error:
            raise LocalServerError(f"failed to start `{binary}`: {error.strerror}") from error
        _wait_until_ready(process, server, begin)
    # If the server ends before this program, it must be waited for, or it stays as a zombie.
    threading.Thread(target=process.wait, name="belljar-local-server", daemon=True).start()


def _wait_until_ready(process: subprocess.Popen[bytes], server: LocalServer, begin: int) -> None:
    deadline = time.monotonic() + _START_PATIENCE
    while not _is_ready(server.socket):
        status = process.poll()
        if status is not None:
            # A server that was started without the lock may have been faster.
            if _is_ready(server.socket):
                return
            raise LocalServerError(
                f"the local server ended with status {status}. Its log:\n{_log_tail(server.log, begin)}",
                hint=f"its log is `{server.log}`",
            )
        if time.monotonic() > deadline:
            process.terminate()
            process.wait(_STOP_PATIENCE)
            raise LocalServerError(
                f"the local server was not ready in {_START_PATIENCE:.0f} s. Its log:\n{_log_tail(server.log, begin)}",
                hint=f"its log is `{server.log}`",
            )
        time.sleep(_START_PACE)


def _open_log(path: Path) -> IO[bytes]:
    if path.exists() and path.stat().st_size > _MAX_LOG:
        path.replace(path.with_suffix(".log.old"))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "ab")


def _log_tail(log: Path, begin: int) -> str:
    with open(log, "rb") as file:
        file.seek(begin)
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return "\n".join(lines[-_QUOTED_LINES:]) or "(nothing)"


def _knows_idle_exit(binary: str, environment: dict[str, str]) -> bool:
    try:
        helped = subprocess.run(
            [binary, "serve", "--help"], capture_output=True, env=environment, stdin=subprocess.DEVNULL, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"--idle-exit" in helped.stdout


def _environment(server: LocalServer) -> dict[str, str]:
    own = {
        # Separate from any other server that this user runs: two servers cannot share these directories.
        "BELLJAR_STATE_DIR": server.data / "state",
        "SESSIONS_ROOT": server.data / "sessions",
        "BLOBSTORE_DIR": server.data / "blobstore",
        "BELLJAR_VOLUMES_DIR": server.data / "volumes",
        "BELLJAR_DATASET_CACHE": server.data / "datasets",
        "BELLJAR_OUTPUTS_DIR": server.data / "outputs",
        "BELLJAR_EXPORTS_DIR": server.data / "exports",
        "BELLJAR_RUN_DIR": server.runtime / "sandboxes",
        "BELLJAR_CGROUP_PARENT": f"belljar-{_digest(os.fsencode(server.runtime))}",
    }
    environment = {name: str(value) for name, value in own.items()}
    given = _settings.read()
    for name, value in given.items():
        is_setting = name in DEFAULTS or name in INTERNAL
        if server.settings and (name in own or name == "ARTIFACTS_DB"):
            # These settings are for the shared server. A database of artifacts has one server, as their files have.
            continue
        if name in MODEL_KEY and not _passes_model_key:
            continue
        if is_setting and name not in _NOT_PASSED_ON:
            environment[name] = value
    # These come from the environment only, not from a file.
    environment.update({name: os.environ[name] for name in _PASSED_ON if os.environ.get(name)})
    environment.update(server.settings)
    if "SESSIONS_ROOT" in server.settings:
        # The user chose this directory to find the files of sessions there.
        environment.setdefault("BELLJAR_SESSION_FILES", "directory")
    for name in _PATHS:
        if name in environment:
            environment[name] = _settings.absolute(environment[name])
    for name in _WITH_VARIABLES:
        value = environment.get(name, "")
        if value.startswith("@"):
            environment[name] = value = "@" + _settings.absolute(value[1:])
        environment.update({name: given[name] for name in _variables_in(value) if name in given})
    _allow_what_the_user_may(environment)
    return environment


def _allow_what_the_user_may(environment: dict[str, str]) -> None:
    """Lets sessions request images, directories and public hosts: only the user can send requests to this server.

    A session gets them only if it requests them. Settings that are set override this.
    """
    environment.setdefault("BELLJAR_IMAGES", "*")
    environment.setdefault("BELLJAR_WORKSPACES", "/")
    network = environment.get("BELLJAR_NETWORK", "none").strip()
    if not network.startswith(("{", '"')):
        # Private addresses can be requested if BELLJAR_NETWORK names them.
        hosts = " ".join(word for word in network.replace(",", " ").split() if word not in ("none", "open"))
        environment.setdefault("BELLJAR_MAX_NETWORK", f"open {hosts}".strip())


def _variables_in(value: str) -> list[str]:
    """The names of variables in the text, such as `${SALES_TOKEN}`."""
    if value.startswith("@"):
        try:
            value = Path(value[1:]).read_text()
        except OSError:
            return []
    return re.findall(r"\$\{(\w+)\}", value)


def _main(arguments: list[str]) -> int:
    """`python -m belljar.local`."""
    if arguments not in (["status"], ["stop"]):
        print("usage: python -m belljar.local status|stop", file=sys.stderr)
        return 2
    try:
        server = LocalServer.from_settings()
        if arguments == ["stop"]:
            stopped = stop(server)
            print("Stopped. Its sessions are kept." if stopped else "It does not run.")
            return 0
        pid = _pid_of(server.socket)
        print(f"process {pid}" if pid is not None else "It does not run.")
        print(f"address unix:{server.socket}\nfiles   {server.data}\nlog     {server.log}")
        return 0
    except BelljarError as error:
        print(f"belljar.local: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
