"""Sessions by the caller's own keys: one sandbox per conversation.

The server knows which session belongs to a key, so the map outlives this program and is shared by
all its workers. What is kept here is only what somebody still has to be told: that a session was
replaced, and what was lost with it.
"""

from __future__ import annotations

import os
import secrets
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from belljar import _keys, _outputs, _settings, local
from belljar._aio import _io as aio
from belljar._aio.client import AsyncClient
from belljar._aio.session import AsyncSession
from belljar._calls import Checkpoints, Network, Size, asked_limits
from belljar._sync import _io as sync
from belljar._sync.client import Client
from belljar._sync.session import Session
from belljar._target import Target
from belljar.config import Config, access_of, storage_of
from belljar.errors import Conflict
from belljar.events import Output
from belljar.models import Result, SessionInfo

__all__ = ["ExecResult", "Opened", "SessionManager"]

# How many keys are remembered with the session that was seen last.
_MAX_SEEN = 10_000
# What the server says of a living session that has other options than were asked for.
_DIFFERS = "session_differs"

S = TypeVar("S", Session, AsyncSession)
T = TypeVar("T")


class ExecResult(Result):
    """A `Result`, and whose it is.

    `notice` is set where the session is not the one that this key had before: it says what is gone.
    """

    session_id: str | None = None
    session_key: str | None = None
    notice: str | None = None


@dataclass(frozen=True)
class Opened(Generic[S]):
    """A session, and what whoever uses it next should know."""

    session: S
    key: str
    notice: str | None

    def noting(self, notice: str | None) -> Opened[S]:
        """The same, with more to be known."""
        said = " ".join(part for part in (self.notice, notice) if part)
        return replace(self, notice=said or None)

    def result(self, result: Result) -> ExecResult:
        """A result of this session, with whose it is."""
        return _with_origin(result, session_id=self.session.id, session_key=self.key, notice=self.notice)


class SessionManager:
    """Gives every conversation a sandbox of its own, made when it is first used and found again later.

    >>> manager = SessionManager(session_storage="TMPFS", dataset_access="NONE")
    >>> manager.exec("conversation-7", "x = 41")
    >>> manager.exec("conversation-7", "x + 1").text
    '42'
    >>> manager.stop("conversation-7")

    `session_storage` is `TMPFS` (memory, at most `tmpfs_size` megabytes) or `BIND` (on disk, below
    `session_root`); `dataset_access` is `NONE`, `LOCAL_RO` (`datasets_path` is shown at `/data`) or
    `API` (brought in on demand). `memory`, `cpus`, `pids`, `ttl`, `idle_timeout`, `env` and `network` are those of
    `Client.session`; what is left out is the server's to choose.

    The server is the one at `url`, or that of `BELLJAR_URL`, or a local one that is started when it is
    needed; `session_root`, `datasets_path`, `blobstore_dir`, `artifacts_db` and `idle_hibernate_sec` are
    settings of a server, so only a local one follows them. With a `session_root` the files of sessions are plain ones
    in `<session_root>/<session_id>/files`, and their size is not enforced. What is left out of these and of the two
    modes is what the environment or the `.env` of the current directory says (`SESSIONS_ROOT`,
    `DATASETS_HOST_RO`, `BLOBSTORE_DIR`, `ARTIFACTS_DB`, ...). `async_client` and `client` are used where they are
    given.

    A conversation that is found again has the options it began with while its session lives; those that were
    changed since count when it is started the next time (with `BIND`, on its files), and `ExecResult.notice` says so.

    Keys are known to the server, and found again by every program that uses it: `key_prefix` keeps
    programs apart that name their conversations alike, whatever these are called (the server's key of
    `conversation-7` is `PREFIX::conversation-7`). `default_key` is the session of those who have
    no conversation; it is a random one, unless told.

    With `checkpoints=True` every execution leaves a point to go back to, and the tools keep sandboxes where their
    graphs are: a thread that is replayed or taken down another branch from an earlier checkpoint finds the
    variables and files of that point.
    """

    def __init__(
        self,
        image: str | None = None,
        session_storage: str | None = None,
        dataset_access: str | None = None,
        datasets_path: str | os.PathLike[str] | None = None,
        session_root: str | os.PathLike[str] | None = None,
        tmpfs_size: Size | None = None,
        *,
        memory: Size | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        ttl: int | None = None,
        idle_timeout: int | None = None,
        env: Mapping[str, str] | None = None,
        network: Network | None = None,
        blobstore_dir: str | os.PathLike[str] | None = None,
        artifacts_db: str | os.PathLike[str] | None = None,
        idle_hibernate_sec: int | None = None,
        url: str | None = None,
        api_key: str | None = None,
        client: Client | None = None,
        async_client: AsyncClient | None = None,
        key_prefix: str = "",
        default_key: str | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.image = None if image in local.DEFAULT_IMAGES else image
        is_local = client is None and async_client is None and Target.find(url, api_key).url is None
        settings = _settings.read() if is_local else {}
        session_storage = session_storage or settings.get("SESSION_STORAGE")
        dataset_access = dataset_access or settings.get("DATASET_ACCESS")
        self.session_storage = None if session_storage is None else storage_of(session_storage)
        self.dataset_access = None if dataset_access is None else access_of(dataset_access)
        self.default_key = default_key or f"convo-{secrets.token_hex(6)}"
        self.checkpoints = checkpoints
        self._timeline: Any = None
        self._key_prefix = key_prefix
        # A number is one of megabytes, as in TMPFS_SIZE_MB.
        tmpfs = f"{tmpfs_size}M" if str(tmpfs_size).isdigit() else tmpfs_size
        self._limits = asked_limits(memory, cpus, pids, tmpfs)
        self._ttl, self._idle_timeout, self._env, self._network = ttl, idle_timeout, env, network
        given: dict[str, str | os.PathLike[str] | None] = {
            "SESSIONS_ROOT": session_root,
            "DATASETS_HOST_RO": datasets_path,
            "BLOBSTORE_DIR": blobstore_dir,
            "ARTIFACTS_DB": artifacts_db,
            "IDLE_HIBERNATE_SEC": None if idle_hibernate_sec is None else str(idle_hibernate_sec),
        }
        # Directories that this mode has no use for are no reason to have a server of one's own.
        useless = {
            "SESSIONS_ROOT": self.session_storage != "BIND",
            "DATASETS_HOST_RO": self.dataset_access != "LOCAL_RO",
        }
        needed = [name for name, value in given.items() if value is not None and not useless.get(name)]
        if needed and not is_local:
            names = " and ".join(needed)
            warnings.warn(f"{names} of a server that runs already are its own to choose", UserWarning, stacklevel=2)
        self._place = _local_place(given, is_needed=bool(needed), settings=settings) if is_local else None
        # Where the artifacts of runs go, which are gone when they could be asked for.
        self._outputs = _settings.absolute(settings.get("BELLJAR_OUTPUTS_DIR") or "outputs") if is_local else None
        self._client = client or Client(url, api_key=api_key)
        self._async_client = async_client or AsyncClient(url, api_key=api_key)
        if self._place is not None:
            self._client._place = self._async_client._place = self._place
        # Whose session the code tool works in: datasets are to go where the code is.
        self.code_key_fn: Callable[..., str] | None = None
        self._lock = threading.Lock()
        # The session that each key had when it was last opened; what nobody has been told yet.
        self._seen: OrderedDict[str, str] = OrderedDict()
        # The session of a key whose other options were told.
        self._differ: OrderedDict[str, str] = OrderedDict()
        self._untold: dict[str, str] = {}

    @classmethod
    def from_config(cls, config: Config, **more: Any) -> SessionManager:
        """A manager as the settings say; `more` are further arguments."""
        # A server that is named has directories of its own, and is told only of what was chosen.
        is_local = Target.find(config.url, config.api_key).url is None
        given: dict[str, Any] = {
            "image": config.sandbox_image,
            "session_storage": config.session_storage,
            "dataset_access": config.dataset_access,
            "datasets_path": config.datasets_host_ro,
            "session_root": _unless(config.sessions_root, None if is_local else Config.sessions_root),
            "tmpfs_size": config.chosen_tmpfs_size_mb,
            "blobstore_dir": _unless(config.blobstore_dir, None if is_local else Config.blobstore_dir),
            "artifacts_db": _unless(config.artifacts_db, None if is_local else Config.artifacts_db),
            # The default is the server's as well, and no reason to have one of one's own.
            "idle_hibernate_sec": _unless(config.idle_hibernate_sec, Config.idle_hibernate_sec),
            "url": config.url,
            "api_key": config.api_key,
        }
        return cls(**{**given, **more})

    # A session per key.

    def start(self, session_id: str) -> Session:
        """The session of this key, alive. It is made if there is none."""
        opened = self.open(session_id)
        self.tell_later(session_id, opened.notice)
        return opened.session

    async def astart(self, session_id: str) -> AsyncSession:
        """The same as `start`, to be awaited."""
        opened = await self.aopen(session_id)
        self.tell_later(session_id, opened.notice)
        return opened.session

    def exec(
        self,
        session_id: str,
        code: str,
        timeout: float | None = None,
        *,
        on_output: sync.Callback[Output] | None = None,
    ) -> ExecResult:
        """Runs Python in the session of this key, which remembers variables from call to call.

        Code that fails is no exception: see `ExecResult.ok`. Where the session is a new one in place
        of one that is gone, `ExecResult.notice` says so.
        """
        opened = self.open(session_id)
        try:
            result = opened.session.run_code(code, timeout=timeout, on_output=on_output)
        except BaseException:
            self.tell_later(session_id, opened.notice)
            raise
        return opened.result(result)

    async def aexec(
        self,
        session_id: str,
        code: str,
        timeout: float | None = None,
        *,
        on_output: aio.Callback[Output] | None = None,
    ) -> ExecResult:
        """The same as `exec`, to be awaited."""
        opened = await self.aopen(session_id)
        try:
            result = await opened.session.run_code(code, timeout=timeout, on_output=on_output)
        except BaseException:
            self.tell_later(session_id, opened.notice)
            raise
        return opened.result(result)

    def stop(self, session_id: str) -> bool:
        """Ends the session of this key, and what runs in it; false if there was none."""
        alive = [found for found in self._client.sessions(key=self._full(session_id)) if found.info.is_alive]
        for session in alive:
            session.stop()
        return bool(alive)

    async def astop(self, session_id: str) -> bool:
        """The same as `stop`, to be awaited."""
        found = await self._async_client.sessions(key=self._full(session_id))
        alive = [session for session in found if session.info.is_alive]
        for session in alive:
            await session.stop()
        return bool(alive)

    def remove(self, session_id: str) -> bool:
        """Forgets all sessions that had this key, with their files; false if there were none."""
        found = list(self._client.sessions(key=self._full(session_id)))
        for session in found:
            session.remove()
        return bool(found)

    async def aremove(self, session_id: str) -> bool:
        """The same as `remove`, to be awaited."""
        found = list(await self._async_client.sessions(key=self._full(session_id)))
        for session in found:
            await session.remove()
        return bool(found)

    # A sandbox for one call.

    def run(
        self, code: str, timeout: float | None = None, *, on_output: sync.Callback[Output] | None = None
    ) -> ExecResult:
        """Runs Python in a fresh sandbox, which is gone afterwards.

        What it leaves in `/work/artifacts` is in `outputs/<run_id>/` below the current directory then, where the server
        is a local one, and where the server says (`artifact_map`) otherwise.
        """
        result = self._client.run(
            code,
            timeout=timeout,
            on_output=on_output,
            limits=self._limits,
            datasets=self._datasets_of_run(),
            image=self.image,
            env=self._env,
            network=self._network,
        )
        return _with_origin(self._brought_here(result))

    async def arun(
        self, code: str, timeout: float | None = None, *, on_output: aio.Callback[Output] | None = None
    ) -> ExecResult:
        """The same as `run`, to be awaited."""
        result = await self._async_client.run(
            code,
            timeout=timeout,
            on_output=on_output,
            limits=self._limits,
            datasets=self._datasets_of_run(),
            image=self.image,
            env=self._env,
            network=self._network,
        )
        return _with_origin(await aio.work(self._brought_here, result))

    # What the tools are made of.

    def open(self, key: str) -> Opened[Session]:
        """The session of this key, and what has to be said about it to whoever uses it next."""
        try:
            session = self._client.session(self._full(key), **self._asked())
            return Opened(session, key, self._notice(key, session.info))
        except Conflict as conflict:
            if conflict.code != _DIFFERS:
                raise
            differs = conflict.message
        session = self._client.session(self._full(key))
        return Opened(session, key, self._notice(key, session.info)).noting(self._differing(key, session.id, differs))

    async def aopen(self, key: str) -> Opened[AsyncSession]:
        """The same as `open`, to be awaited."""
        try:
            session = await self._async_client.session(self._full(key), **self._asked())
            return Opened(session, key, self._notice(key, session.info))
        except Conflict as conflict:
            if conflict.code != _DIFFERS:
                raise
            differs = conflict.message
        session = await self._async_client.session(self._full(key))
        return Opened(session, key, self._notice(key, session.info)).noting(self._differing(key, session.id, differs))

    @property
    def client(self) -> Client:
        return self._client

    @property
    def async_client(self) -> AsyncClient:
        return self._async_client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client.url!r}, {self.session_storage}, {self.dataset_access})"

    def close(self) -> None:
        """Closes connections. Sessions stay."""
        self._client.close()

    async def aclose(self) -> None:
        """Closes connections, also those of this event loop. Sessions stay."""
        self._client.close()
        await self._async_client.aclose()

    def __enter__(self) -> SessionManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _full(self, key: str) -> str:
        return _keys.joined(self._key_prefix, key)

    def _asked(self) -> dict[str, Any]:
        return {
            "storage": self.session_storage,
            "datasets": self.dataset_access,
            "limits": self._limits,
            "ttl": self._ttl,
            "idle_timeout": self._idle_timeout,
            "env": self._env,
            "image": self.image,
            "network": self._network,
            "checkpoints": self.checkpoints,
        }

    def timeline(self, make: Callable[[], T]) -> T:
        """What the tools of this manager know of where their sandboxes are; made once."""
        with self._lock:
            if self._timeline is None:
                self._timeline = make()
            made: T = self._timeline
            return made

    def _datasets_of_run(self) -> Any:
        # A run is over before anything could be staged into it.
        return "LOCAL_RO" if self.dataset_access == "LOCAL_RO" else None

    def _brought_here(self, result: Result) -> Result:
        return result if self._outputs is None else _outputs.copied(result, Path(self._outputs))

    def _notice(self, key: str, info: SessionInfo) -> str | None:
        with self._lock:
            before = self._seen.pop(key, None)
            self._seen[key] = info.id
            if len(self._seen) > _MAX_SEEN:
                self._seen.popitem(last=False)
            untold = self._untold.pop(key, None)
        return _what_is_gone(info, before) or untold

    def _differing(self, key: str, session_id: str, differs: str) -> str | None:
        """What to say of a living session with other options than those of this manager, once for each session."""
        with self._lock:
            if self._differ.get(key) == session_id:
                return None
            self._differ[key] = session_id
            if len(self._differ) > _MAX_SEEN:
                self._differ.popitem(last=False)
        return f"{differs[:1].upper()}{differs[1:]}; it goes on as it is until it is stopped."

    def tell_later(self, key: str, notice: str | None) -> None:
        """Keeps a notice that could not be told for the next who opens the session."""
        if notice is not None:
            with self._lock:
                self._untold.setdefault(key, notice)


def _local_place(
    given: Mapping[str, str | os.PathLike[str] | None], *, is_needed: bool, settings: Mapping[str, str]
) -> local.Place:
    """Where the local server is that is set like this: the shared one, unless the settings are only one server's."""
    if not is_needed and not any(settings.get(name) for name in local.OWN):
        return local.Place()
    # All of them, whatever the mode: programs with the same settings share a server, and so their artifacts.
    place = local.Place.wanted({name: os.fspath(value) for name, value in given.items() if value is not None})
    if "SESSIONS_ROOT" in place.settings:
        Path(place.settings["SESSIONS_ROOT"]).mkdir(parents=True, exist_ok=True)
    return place


def _unless(value: T, default: T | None) -> T | None:
    return None if value == default else value


def _what_is_gone(info: SessionInfo, before: str | None) -> str | None:
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


def _with_origin(result: Result, **origin: str | None) -> ExecResult:
    return ExecResult.model_construct(**{**dict(result), **(result.model_extra or {}), **origin})
