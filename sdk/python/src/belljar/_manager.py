"""What the synchronous and the asynchronous half of `SessionManager` share: its configuration, and notices about lost
sessions."""

from __future__ import annotations

import os
import secrets
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar

from belljar import _keys, _outputs, _settings, local
from belljar._aio.client import AsyncClient
from belljar._aio.session import AsyncSession
from belljar._options import Checkpoints, Network, RunOptions, SessionOptions, Size, limit_options
from belljar._sync.client import Client
from belljar._sync.session import Session
from belljar._target import Target
from belljar.config import Config, access_of, storage_of
from belljar.models import Result, SessionInfo

# How many keys are remembered with their last session.
_MAX_KEYS = 10_000
# The error code for a live session that has other options than the requested ones.
DIFFERS = "session_differs"

S = TypeVar("S", Session, AsyncSession)
T = TypeVar("T")


class ManagerOptions(TypedDict, total=False):
    """The fields of `ManagerConfig`, as keyword arguments of `SessionManager`."""

    image: str | None
    session_storage: str | None
    dataset_access: str | None
    datasets_path: str | os.PathLike[str] | None
    session_root: str | os.PathLike[str] | None
    tmpfs_size: Size | None
    memory: Size | None
    cpus: float | None
    pids: int | None
    ttl: int | None
    idle_timeout: int | None
    env: Mapping[str, str] | None
    network: Network | None
    blobstore_dir: str | os.PathLike[str] | None
    artifacts_db: str | os.PathLike[str] | None
    idle_hibernate_sec: int | None
    url: str | None
    api_key: str | None
    key_prefix: str
    default_key: str | None
    checkpoints: Checkpoints | None


@dataclass(frozen=True)
class ManagerConfig:
    """The configuration of a `SessionManager`.

    >>> config = ManagerConfig(session_storage="BIND", session_root="sessions", memory="1G")
    >>> manager = SessionManager(config)

    A field that is None is taken from the environment or `.env` (`SESSION_STORAGE`, `DATASET_ACCESS`, `SESSIONS_ROOT`,
    `DATASETS_HOST_RO`, `BLOBSTORE_DIR`, `ARTIFACTS_DB`, ...), else the server chooses. Only a local server can follow
    `session_root`, `datasets_path`, `blobstore_dir`, `artifacts_db` and `idle_hibernate_sec`: these are settings of a
    server.
    """

    #: The image of sandboxes.
    image: str | None = None
    #: Where files of a session are kept: `TMPFS` (memory) or `BIND` (disk).
    session_storage: str | None = None
    #: Access to datasets: `NONE`, `LOCAL_RO` (`datasets_path` is mounted at `/data`) or `API` (on demand).
    dataset_access: str | None = None
    #: The directory that `LOCAL_RO` mounts.
    datasets_path: str | os.PathLike[str] | None = None
    #: The directory for the files of `BIND` sessions: `<session_root>/<session_id>/files`. Their size is not limited.
    session_root: str | os.PathLike[str] | None = None
    #: Size of the files of a `TMPFS` session; a number means megabytes.
    tmpfs_size: Size | None = None
    #: Memory of a sandbox, in bytes or as text such as `"1G"`.
    memory: Size | None = None
    #: Processors of a sandbox.
    cpus: float | None = None
    #: How many processes a sandbox may have.
    pids: int | None = None
    #: Seconds that a session lives after its last use.
    ttl: int | None = None
    #: Seconds without use after which a session ends, if that is earlier than `ttl`.
    idle_timeout: int | None = None
    #: Environment variables of all code.
    env: Mapping[str, str] | None = None
    #: Where code may connect to; see `SessionOptions`.
    network: Network | None = None
    #: The directory for the content of artifacts.
    blobstore_dir: str | os.PathLike[str] | None = None
    #: The database that lists artifacts.
    artifacts_db: str | os.PathLike[str] | None = None
    #: Seconds without use after which large Python values are moved to disk; 0 means never.
    idle_hibernate_sec: int | None = None
    #: The server's address: this, else `BELLJAR_URL`, else a local server that is started when it is needed.
    url: str | None = None
    #: The API key: this, else `BELLJAR_API_KEY`.
    api_key: str | None = None
    #: Separates programs that use the same server and the same keys: the server's key of `conversation-7` is
    #: `PREFIX::conversation-7`.
    key_prefix: str = ""
    #: The key for calls without a conversation; random by default.
    default_key: str | None = None
    #: Whether every execution makes a checkpoint. Then the tools follow their graph: a thread that is replayed or
    #: forked from an earlier state of the graph finds the variables and files of that state.
    checkpoints: Checkpoints | None = None

    @staticmethod
    def of_settings(config: Config) -> ManagerConfig:
        """The configuration for settings that `Config` has read."""
        # A server with an address has its own directories: it gets only settings that differ from the defaults.
        is_local = Target.find(config.url, config.api_key).url is None
        return ManagerConfig(
            image=config.sandbox_image,
            session_storage=config.session_storage,
            dataset_access=config.dataset_access,
            datasets_path=config.datasets_host_ro,
            session_root=_unless(config.sessions_root, None if is_local else Config.sessions_root),
            tmpfs_size=config.chosen_tmpfs_size_mb,
            blobstore_dir=_unless(config.blobstore_dir, None if is_local else Config.blobstore_dir),
            artifacts_db=_unless(config.artifacts_db, None if is_local else Config.artifacts_db),
            # The server has the same default: it needs no server of its own for that.
            idle_hibernate_sec=_unless(config.idle_hibernate_sec, Config.idle_hibernate_sec),
            url=config.url,
            api_key=config.api_key,
        )


class ExecResult(Result):
    """A `Result` with the session that it comes from.

    `notice` is set if the session is not the one that this key had before: it says what is lost.
    """

    session_id: str | None = None
    session_key: str | None = None
    notice: str | None = None


@dataclass(frozen=True)
class Opened(Generic[S]):
    """A session of a key, and a notice for its next user."""

    session: S
    key: str
    notice: str | None

    def noting(self, notice: str | None) -> Opened[S]:
        """The same with another notice added."""
        text = " ".join(part for part in (self.notice, notice) if part)
        return replace(self, notice=text or None)

    def result(self, result: Result) -> ExecResult:
        """A result with this session as its origin."""
        return with_origin(result, session_id=self.session.id, session_key=self.key, notice=self.notice)


def with_origin(result: Result, **origin: str | None) -> ExecResult:
    return ExecResult.model_construct(**{**dict(result), **(result.model_extra or {}), **origin})


class Notices:
    """Remembers the last session of each key, and notices that no caller has got yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last_session: OrderedDict[str, str] = OrderedDict()
        # Sessions about whose other options there was a notice.
        self._reported: OrderedDict[str, str] = OrderedDict()
        self._pending: dict[str, str] = {}

    def opened(self, key: str, info: SessionInfo) -> str | None:
        """The notice for the caller that opens this session now."""
        with self._lock:
            before = _exchange(self._last_session, key, info.id)
            pending = self._pending.pop(key, None)
        return _loss(info, before) or pending

    def differs(self, key: str, session_id: str, message: str) -> str | None:
        """The notice that a live session has other options than requested, once for each session."""
        with self._lock:
            if _exchange(self._reported, key, session_id) == session_id:
                return None
        return f"{message[:1].upper()}{message[1:]}; it goes on as it is until it is stopped."

    def keep(self, key: str, notice: str | None) -> None:
        """Keeps a notice that its caller could not use, for the next caller."""
        if notice is not None:
            with self._lock:
                self._pending.setdefault(key, notice)


class ManagerState:
    """The state of a `SessionManager`."""

    def __init__(self, config: ManagerConfig, client: Client | None, async_client: AsyncClient | None) -> None:
        is_local = client is None and async_client is None and Target.find(config.url, config.api_key).url is None
        settings = _settings.read() if is_local else {}
        storage = config.session_storage or settings.get("SESSION_STORAGE")
        access = config.dataset_access or settings.get("DATASET_ACCESS")
        self.config = config
        self.image = None if config.image in local.DEFAULT_IMAGES else config.image
        self.session_storage = None if storage is None else storage_of(storage)
        self.dataset_access = None if access is None else access_of(access)
        self.default_key = config.default_key or f"convo-{secrets.token_hex(6)}"
        self.checkpoints = config.checkpoints
        #: The network policy that new sessions request. Browser tools may extend it.
        self.network = config.network
        #: The key function of the code tool: tools for datasets use the same session.
        self.code_key_fn: Callable[..., str] | None = None
        # A number means megabytes, as in TMPFS_SIZE_MB.
        tmpfs = f"{config.tmpfs_size}M" if str(config.tmpfs_size).isdigit() else config.tmpfs_size
        self._limits = limit_options(config.memory, config.cpus, config.pids, tmpfs)
        self._notices = Notices()
        self._timeline: Any = None
        self._timeline_lock = threading.Lock()
        # Where artifacts of runs are copied to: the program cannot ask for them later.
        self._outputs = _settings.absolute(settings.get("BELLJAR_OUTPUTS_DIR") or "outputs") if is_local else None
        self._client = client or Client(config.url, api_key=config.api_key)
        self._async_client = async_client or AsyncClient(config.url, api_key=config.api_key)
        self._choose_server(is_local, settings)

    def tell_later(self, key: str, notice: str | None) -> None:
        """Keeps a notice that its caller could not use, for the next caller that opens the session."""
        self._notices.keep(key, notice)

    def timeline(self, make: Callable[[], T]) -> T:
        """The object with which the tools of this manager follow their graphs; created once."""
        with self._timeline_lock:
            if self._timeline is None:
                self._timeline = make()
            made: T = self._timeline
            return made

    def _choose_server(self, is_local: bool, settings: Mapping[str, str]) -> None:
        """Selects the local server for this configuration, or warns about options that only such a server follows."""
        config = self.config
        hibernate = config.idle_hibernate_sec
        given: dict[str, str | os.PathLike[str] | None] = {
            "SESSIONS_ROOT": config.session_root,
            "DATASETS_HOST_RO": config.datasets_path,
            "BLOBSTORE_DIR": config.blobstore_dir,
            "ARTIFACTS_DB": config.artifacts_db,
            "IDLE_HIBERNATE_SEC": None if hibernate is None else str(hibernate),
        }
        # Directories that this mode does not use do not need a server of their own.
        unused = {
            "SESSIONS_ROOT": self.session_storage != "BIND",
            "DATASETS_HOST_RO": self.dataset_access != "LOCAL_RO",
        }
        needed = [name for name, value in given.items() if value is not None and not unused.get(name)]
        if is_local:
            selected = _local_server(given, is_needed=bool(needed), settings=settings)
            self._client._local = self._async_client._local = selected
        elif needed:
            # The caller of SessionManager().
            warnings.warn(f"the server has its own {' and '.join(needed)}; yours have no effect", stacklevel=4)

    def _full_key(self, key: str) -> str:
        return _keys.joined(self.config.key_prefix, key)

    def _session_options(self) -> SessionOptions:
        return {
            "storage": self.session_storage,
            "datasets": self.dataset_access,
            "limits": self._limits,
            "ttl": self.config.ttl,
            "idle_timeout": self.config.idle_timeout,
            "env": self.config.env,
            "image": self.image,
            "network": self.network,
            "checkpoints": self.checkpoints,
        }

    def _run_options(self, timeout: float | None) -> RunOptions:
        return {
            "timeout": timeout,
            "limits": self._limits,
            # A run has no time to stage datasets.
            "datasets": "LOCAL_RO" if self.dataset_access == "LOCAL_RO" else None,
            "image": self.image,
            "env": self.config.env,
            "network": self.network,
        }

    def _with_local_copies(self, result: Result) -> Result:
        return result if self._outputs is None else _outputs.copied(result, Path(self._outputs))


def _local_server(
    given: Mapping[str, str | os.PathLike[str] | None], *, is_needed: bool, settings: Mapping[str, str]
) -> local.LocalServer:
    """The local server with these settings: the shared one, unless there are settings that need a server of its own."""
    if not is_needed and not any(settings.get(name) for name in local.OWN):
        return local.LocalServer()
    # All of them, whatever the mode: programs with the same settings share a server, and so their artifacts.
    overrides = {name: os.fspath(value) for name, value in given.items() if value is not None}
    server = local.LocalServer.from_settings(overrides)
    if "SESSIONS_ROOT" in server.settings:
        Path(server.settings["SESSIONS_ROOT"]).mkdir(parents=True, exist_ok=True)
    return server


def _unless(value: T, default: T | None) -> T | None:
    return None if value == default else value


def _exchange(sessions: OrderedDict[str, str], key: str, session_id: str) -> str | None:
    """Stores the session of a key, forgets the oldest key if there are too many, and returns the previous session."""
    before = sessions.pop(key, None)
    sessions[key] = session_id
    if len(sessions) > _MAX_KEYS:
        sessions.popitem(last=False)
    return before


def _loss(info: SessionInfo, before: str | None) -> str | None:
    """What is lost, if the session is not the one that was used before."""
    if info.how == "restarted":
        return (
            "The sandbox had ended and was started again: all variables and imports are gone; "
            "the files in /session are still there."
        )
    if info.replaced is not None or before not in (None, info.id):
        because = f" ({info.replaced.because})" if info.replaced is not None else ""
        return (
            f"The sandbox used before in this conversation is gone{because}. "
            "This is a new one: all variables, imports and files from before are gone."
        )
    return None
