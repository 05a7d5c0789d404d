"""The local server: one per user, shared by all of the user's programs.

```text
   ensure() ── somebody answers on the socket? ── yes ──▶ its path
                 │ no
                 ▼ one program at a time (lock)
               answers by now? ── yes ──▶ its path
                 │ no
                 ▼
               `belljar serve --unix SOCKET`, detached ──▶ ready? ──▶ its path
                                                        └▶ ended, or not in time: its own words
```

Everything of it is in directories that only the user can enter, and nothing is said to a socket
before that is certain: anybody can make a directory in `/tmp`, and listen there under our name. Then
the process behind the socket must be this user's as well, by the kernel's word. The socket, the lock
and the log are below `$XDG_RUNTIME_DIR/belljar-local` or the data directory, which is
`~/.local/share/belljar/local` (or `$XDG_DATA_HOME/belljar/local`) and holds what must last. The
`belljar` command finds it in the same way (`crates/belljar/src/settings/local.rs`).

Its settings are those of the program that started it: `BELLJAR_MEMORY` and so on, from the environment
and the `.env` of the current directory. Of its environment nothing else is passed on, least of all
keys, unless tools need one (`pass_model_key`). A program with other settings than the server that runs
already asks for them with every session (`adjusted`); those that only a server can have are named in a
warning.

What one server can have only once, such as the directory of datasets, may be wanted differently by
different programs: `Place({"DATASETS_HOST_RO": ...})` is the place of one more server, shared by all
who want the same. `Place.wanted()` is the one that the settings ask for.

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

__all__ = ["Place", "ensure", "is_running", "is_set_up", "log_path", "stop"]

# How long a server may take to be ready: it takes over what an earlier one left.
_START_PATIENCE = 60.0
_START_PACE = 0.02
# Another program may be starting it.
_LOCK_PATIENCE = _START_PATIENCE + 10.0
_LOCK_PACE = 0.02
# The server lets requests in progress finish for 10 seconds.
_STOP_PATIENCE = 20.0
_PROBE_TIMEOUT = 5.0
# Seconds without sessions and requests after which the server ends by itself, where it knows how.
_IDLE_EXIT = 900
# Those with settings of their own hold directories that another, set a little differently, may want next.
_IDLE_EXIT_OF_ITS_OWN = 60
# How much of the server's words an error quotes, and how much log is kept from earlier servers.
_QUOTED_LINES = 12
_MAX_LOG = 4 << 20
# The longest path of a socket, its final NUL included; the server first binds a name some 16 longer.
_MAX_SOCKET_PATH = 108 - 20

# What a server needs to find its way on this machine.
_PASSED_ON = (
    "PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "DBUS_SESSION_BUS_ADDRESS",
)  # fmt: skip
# What a server has only once, and programs may want differently: each set of these has a server of its own.
OWN = ("ARTIFACTS_DB", "BLOBSTORE_DIR", "DATASETS_HOST_RO", "IDLE_HIBERNATE_SEC", "SESSIONS_ROOT")
# Two servers cannot share these.
_EXCLUSIVE = ("ARTIFACTS_DB", "BLOBSTORE_DIR")
# Relative ones are meant from here, not from where the server runs.
_PATHS = (
    "ARTIFACTS_DB", "BLOBSTORE_DIR", "DATASETS_HOST_RO", "SESSIONS_ROOT", "BELLJAR_DATASET_CACHE",
    "BELLJAR_EXPORTS_DIR", "BELLJAR_FROZEN_DIR", "BELLJAR_HOME", "BELLJAR_OUTPUTS_DIR", "BELLJAR_RUN_DIR",
    "BELLJAR_SOCKET_DIR", "BELLJAR_STATE_DIR", "BELLJAR_VOLUMES_DIR",
)  # fmt: skip
# JSON, or the path of a file with it; `${NAME}` in it is a variable that the server needs too.
_WITH_VARIABLES = ("BELLJAR_DATASET_SOURCES", "BELLJAR_NETWORK_SECRETS")
# Ours and not the server's, or about another server than this one.
_NOT_PASSED_ON = {
    "BELLJAR_BINARY", "BELLJAR_URL", "BELLJAR_API_KEY", "BELLJAR_LISTEN", "BELLJAR_UNIX", "BELLJAR_TLS_CERT",
    "BELLJAR_TLS_KEY",
}  # fmt: skip
# The key of a model, which most programs have for purposes of their own: only tools that need it have it passed on.
MODEL_KEY = ("OPENAI_API_KEY", "OPENAI_BASE_URL")
_passes_model_key = False
# Other names for the image that every server has.
DEFAULT_IMAGES = {
    "sandbox", "sandbox:latest", "py-sandbox:latest", "python-agent-sandbox:latest", "python-chart-sandbox:latest",
    "local/sandbox-py311-rdkit:latest",
}  # fmt: skip

_BARE = (
    "belljar: sandboxes have the plain Python of this machine, without numpy, pandas and matplotlib; "
    "`sandbox-setup` installs those for them, once (about a minute and 600 MB)"
)


# Sockets of the places that this program knows: what is said there is for our own server only.
_own_sockets: set[str] = set()


class Place:
    """Where the local server of this user is, or the one with these `settings`."""

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.settings = dict(settings or {})
        told = "".join(f"{name}={value}\n" for name, value in sorted(self.settings.items()))
        suffix = f"-{_digest(os.fsencode(told))}" if told else ""
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
    def wanted(given: Mapping[str, str | None] | None = None) -> Place:
        """That of the server which the environment and `.env` ask for; what is `given` wins."""
        asked = {**_settings.read(), **(given or {})}
        settings = {name: value for name in OWN if (value := asked.get(name))}
        return Place(
            {name: _settings.absolute(value) if name in _PATHS else value for name, value in settings.items()}
        )

    def make(self) -> None:
        for directory in (self.data, self.runtime):
            _make_private(directory)


def ensure(place: Place | None = None) -> str:
    """The path of the local server's socket; starts the server if nobody has."""
    place = place or Place.wanted()
    if _is_ready(place.socket):
        return str(place.socket)
    place.make()
    with _locked(place.lock):
        if not _is_ready(place.socket):
            _start(place)
    return str(place.socket)


def pass_model_key() -> None:
    """Gives a server that this program starts the key of the model that does browser tasks, to add it on the way."""
    global _passes_model_key
    _passes_model_key = True


def is_running() -> bool:
    """Whether the local server answers. Raises if its directory is not the user's own."""
    return _is_ready(Place.wanted().socket)


def is_set_up() -> bool:
    """Whether sandboxes have numpy, pandas and the rest, which `belljar setup` installs for them.

    Without it they run the plain Python of this machine.
    """
    return manifest_path().is_file()


def manifest_path() -> Path:
    """What `belljar setup` writes last, when all the rest is there."""
    return _home() / "python" / "belljar.json"


def log_path() -> Path:
    """Where the local server writes what it has to say."""
    return Place.wanted().log


def stop(place: Place | None = None) -> bool:
    """Stops the local server, if it runs; true if it did.

    Sessions survive that, as they survive everything: the next server finds them. Stop those first
    that are not needed any more.
    """
    place = place or Place.wanted()
    if not _is_own(place.runtime):
        return False
    with _locked(place.lock):
        pid = _pid_of(place.socket)
        if pid is None:
            return False
        return _end(pid)


# How a setting is asked for with a session or a run: the field, and its value made from the variable's.
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
# Those that a run has too, which is over before the others could matter.
_OF_RUNS = ("limits", "datasets", "image", "network")

# What was told of which server, so that it is told once.
_told: set[tuple[int, str]] = set()


def adjusted(place: Place, body: Mapping[str, Any], is_run: bool) -> Mapping[str, Any]:
    """What to ask of the local server for a session or a run: with the settings of this program that it does not have.

    Those that cannot be asked for are named in a warning.
    """
    explicit = _settings.read()
    wanted = {name for name in explicit if name in DEFAULTS and name not in {*_NOT_PASSED_ON, *MODEL_KEY, *OWN}}
    if not wanted:
        return body
    theirs = _environment_of(place)
    if theirs is None:
        return body
    pid, theirs_settings = theirs
    ours = _environment(place)
    differing = {name: ours[name] for name in sorted(wanted) if name in ours and _differs(name, ours, theirs_settings)}
    asked = dict(body)
    for name in list(differing):
        if _can_ask(name, differing[name], theirs_settings):
            _ask(asked, name, differing.pop(name), is_run)
    _tell(pid, differing, theirs_settings)
    return asked


def _differs(name: str, ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    if name in ("SANDBOX_IMAGE", "SANDBOX_IMAGE_NAME") and ours[name] in DEFAULT_IMAGES:
        return False
    return ours[name] != (theirs.get(name) or DEFAULTS[name])


def _can_ask(name: str, value: str, theirs: Mapping[str, str]) -> bool:
    if name == "BELLJAR_NETWORK":
        # Unless it says more, a server allows no more than its own default.
        return value == "none" or bool(theirs.get("BELLJAR_MAX_NETWORK"))
    # No session can ask for none.
    return name in _PER_SESSION and not (name == "BELLJAR_IDLE_TIMEOUT" and value == "0")


def _ask(body: dict[str, Any], name: str, value: str, is_run: bool) -> None:
    field, made = _PER_SESSION[name]
    field, _, part = field.partition(".")
    if is_run and field not in _OF_RUNS:
        return
    if is_run and field == "datasets" and value.upper() != "LOCAL_RO":
        # A run is over before anything could be staged into it.
        return
    try:
        wish = made(value)
    except ValueError:
        raise InvalidRequest(f"{name}={value}: it is a number") from None
    if not part:
        body.setdefault(field, wish)
    elif part not in body.get(field, {}):
        body[field] = {**body.get(field, {}), part: wish}


def _tell(pid: int, differing: Mapping[str, str], theirs: Mapping[str, str]) -> None:
    """Says which settings have no effect, and what to do; once for every server."""
    new = [name for name in differing if (pid, name) not in _told]
    if not new:
        return
    import logging

    _told.update((pid, name) for name in new)
    said = ", ".join(_comparison(name, differing[name], theirs) for name in new)
    logging.getLogger("belljar").warning(
        f"belljar: the local server was started with other settings: {said}. To use yours, stop it with "
        "`python -m belljar.local stop`; the next program starts it again, and its sessions stay"
    )


def tell_of_session(session_id: str, conflict: str) -> None:
    """Says that a session which lives already has other settings than ours, once."""
    if (0, session_id) not in _told:
        import logging

        _told.add((0, session_id))
        logging.getLogger("belljar").warning(f"belljar: {conflict}; it goes on as it is until it is stopped")


def _comparison(name: str, value: str, theirs: Mapping[str, str]) -> str:
    if name in SECRET:
        return f"another {name}"
    its = theirs.get(name) or DEFAULTS[name]
    return f"{name} is {its if its else 'not set'} there and {value} here"


def _environment_of(place: Place) -> tuple[int, dict[str, str]] | None:
    """The process of the local server, which is started if it does not run, and the settings that it was started with.

    None if that cannot be found out.
    """
    pid = _pid_of(place.socket)
    if pid is None:
        ensure(place)
        pid = _pid_of(place.socket)
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


def _make_room(place: Place, environment: Mapping[str, str]) -> None:
    """Stops other local servers of this user that hold what this one needs for itself alone, if they have no sessions.

    Such as that of the same project, before its settings were changed. Those with sessions stay, and the new server
    says what it misses.
    """
    wanted = {(name, environment.get(name)) for name in _EXCLUSIVE if environment.get(name)}
    nearby = [*place.runtime.parent.glob("belljar-local*"), *place.data.parent.glob("local*/run")]
    for directory in nearby:
        try:
            pid = _pid_of(directory / "server.sock") if directory != place.runtime else None
        except LocalServerError:
            # Not ours.
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
            f"failed to make the directory `{directory}` for the local server: {error.strerror}",
            hint="set XDG_DATA_HOME to a place that can be written to, or BELLJAR_URL to a server that runs already",
        ) from error


def may_talk_to(path: str) -> bool:
    """Whether a server of this user's can be at this socket; raises if it would be somebody else's.

    Sockets that are not those of local servers were named by the user, who knows whose they are.
    """
    return path not in _own_sockets or _is_own(Path(path).parent)


def _is_own(directory: Path) -> bool:
    """Whether it is there; raises unless it is a directory in which only this user can make sockets."""
    try:
        found = os.lstat(directory)
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise LocalServerError(
            f"`{directory}` is not a directory of yours, or others can write to it: who answers there is not known",
            hint="remove it, or set XDG_RUNTIME_DIR",
        )
    return True


def _peer(client: socket.socket) -> tuple[int, int]:
    """The process at the other end and its user, by the kernel's word."""
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One program at a time. The lock ends with the file descriptor, so with us if we are killed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + _LOCK_PATIENCE
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise LocalServerError(f"another program has held `{path}` for too long") from None
                time.sleep(_LOCK_PACE)
        yield
    finally:
        os.close(descriptor)


class _Connection(http.client.HTTPConnection):
    """HTTP over a UNIX socket, without what takes long to import."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_PROBE_TIMEOUT)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
        if _peer(self.sock)[1] != os.getuid():
            raise PermissionError(f"`{self._path}` is another user's")


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
    """The process behind a socket, by the kernel's word: files that say so may be out of date."""
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
            raise LocalServerError(f"BELLJAR_BINARY names `{named}`, which is no program")
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
            "the program `belljar` is not here, so no local server can be started",
            hint="install the whole package, name it with BELLJAR_BINARY, or set BELLJAR_URL to a server that runs",
        )
    return found


def _home() -> Path:
    """Where the server looks for the Python of sandboxes; see BELLJAR_HOME in docs/settings.md."""
    named = _settings.read().get("BELLJAR_HOME")
    if named:
        return Path(_settings.absolute(named))
    if os.getuid() == 0:
        return Path("/var/lib/belljar")
    return Path(os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share"), "belljar")


def _say_if_bare() -> None:
    """A warning, which whoever has not said otherwise sees on stderr; once per server, not per program."""
    if not is_set_up():
        import logging

        logging.getLogger("belljar").warning(_BARE)


def _start(place: Place) -> None:
    binary = find_binary()
    _say_if_bare()
    arguments = [binary, "serve", "--unix", str(place.socket)]
    environment = _environment(place)
    if place.settings:
        _make_room(place, environment)
    if _knows_idle_exit(binary, environment):
        arguments += ["--idle-exit", str(_IDLE_EXIT_OF_ITS_OWN if place.settings else _IDLE_EXIT)]
    with _open_log(place.log) as log:
        begin = log.seek(0, os.SEEK_END)
        try:
            server = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=place.data,
                env=environment,
                # Ctrl-C in the program that happened to be the first is not for the server.
                start_new_session=True,
            )
        except OSError as error:
            raise LocalServerError(f"failed to start `{binary}`: {error.strerror}") from error
        _await(server, place, begin)
    # Should it end before us, somebody has to notice, or it stays as a zombie.
    threading.Thread(target=server.wait, name="belljar-local-server", daemon=True).start()


def _await(server: subprocess.Popen[bytes], place: Place, begin: int) -> None:
    deadline = time.monotonic() + _START_PATIENCE
    while not _is_ready(place.socket):
        status = server.poll()
        if status is not None:
            # Somebody outside our lock may have been faster.
            if _is_ready(place.socket):
                return
            raise LocalServerError(
                f"the local server ended with status {status}. It said:\n{_words(place.log, begin)}",
                hint=f"its log is `{place.log}`",
            )
        if time.monotonic() > deadline:
            server.terminate()
            server.wait(_STOP_PATIENCE)
            raise LocalServerError(
                f"the local server was not ready after {_START_PATIENCE:.0f} s. It said:\n{_words(place.log, begin)}",
                hint=f"its log is `{place.log}`",
            )
        time.sleep(_START_PACE)


def _open_log(path: Path) -> IO[bytes]:
    if path.exists() and path.stat().st_size > _MAX_LOG:
        path.replace(path.with_suffix(".log.old"))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return os.fdopen(descriptor, "ab")


def _words(log: Path, begin: int) -> str:
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


def _environment(place: Place) -> dict[str, str]:
    own = {
        # Apart from a server that this user may run otherwise: two cannot share any of these.
        "BELLJAR_STATE_DIR": place.data / "state",
        "SESSIONS_ROOT": place.data / "sessions",
        "BLOBSTORE_DIR": place.data / "blobstore",
        "BELLJAR_VOLUMES_DIR": place.data / "volumes",
        "BELLJAR_DATASET_CACHE": place.data / "datasets",
        "BELLJAR_OUTPUTS_DIR": place.data / "outputs",
        "BELLJAR_EXPORTS_DIR": place.data / "exports",
        "BELLJAR_RUN_DIR": place.runtime / "sandboxes",
        "BELLJAR_CGROUP_PARENT": f"belljar-{_digest(os.fsencode(place.runtime))}",
    }
    environment = {name: str(value) for name, value in own.items()}
    given = _settings.read()
    for name, value in given.items():
        is_setting = name in DEFAULTS or name in INTERNAL
        if place.settings and (name in own or name == "ARTIFACTS_DB"):
            # Meant for the one server that everybody shares; a list of artifacts has one server, as their files have.
            continue
        if name in MODEL_KEY and not _passes_model_key:
            continue
        if is_setting and name not in _NOT_PASSED_ON:
            environment[name] = value
    # Where it finds its way is not for a file to say.
    environment.update({name: os.environ[name] for name in _PASSED_ON if os.environ.get(name)})
    environment.update(place.settings)
    if "SESSIONS_ROOT" in place.settings:
        # Somebody chose where the files of sessions go, to find them there.
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
    """Nobody but the user can ask this server for anything: images, the user's own directories, public hosts.

    None of it is given to a session that does not ask for it. What the settings say has the last word.
    """
    environment.setdefault("BELLJAR_IMAGES", "*")
    environment.setdefault("BELLJAR_WORKSPACES", "/")
    network = environment.get("BELLJAR_NETWORK", "none").strip()
    if not network.startswith(("{", '"')):
        # Private addresses can be asked for if they stand there as such.
        hosts = " ".join(word for word in network.replace(",", " ").split() if word not in ("none", "open"))
        environment.setdefault("BELLJAR_MAX_NETWORK", f"open {hosts}".strip())


def _variables_in(value: str) -> list[str]:
    """Variables that headers are made of: `${SALES_TOKEN}`."""
    if value.startswith("@"):
        try:
            value = Path(value[1:]).read_text()
        except OSError:
            return []
    return re.findall(r"\$\{(\w+)\}", value)


def _main(arguments: list[str]) -> int:
    """`python -m belljar.local`, for people."""
    if arguments not in (["status"], ["stop"]):
        print("usage: python -m belljar.local status|stop", file=sys.stderr)
        return 2
    try:
        place = Place.wanted()
        if arguments == ["stop"]:
            stopped = stop(place)
            print("It is stopped. Its sessions stay." if stopped else "It does not run.")
            return 0
        pid = _pid_of(place.socket)
        print(f"process {pid}" if pid is not None else "It does not run.")
        print(f"address unix:{place.socket}\nfiles   {place.data}\nlog     {place.log}")
        return 0
    except BelljarError as error:
        print(f"belljar.local: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
