"""Settings of an agent's sandboxes, from the environment and a `.env` file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from belljar import _settings
from belljar._calls import Access, Storage
from belljar.errors import InvalidRequest

__all__ = ["Config"]

_STORAGES = ("TMPFS", "BIND")
_ACCESSES = ("NONE", "LOCAL_RO", "API")
# Other names for the same.
_ALIASES = {"API_TMPFS": "API"}


class _Unchosen(int):
    """A number that nobody chose: the server may make less of it."""


@dataclass(frozen=True)
class Config:
    """How an agent's sandboxes are to be.

    >>> config = Config.from_env()
    >>> manager = SessionManager.from_config(config)

    Two knobs make six modes, and `mode` names the one that is chosen: files of a session in memory
    (`TMPFS`) or on disk (`BIND`), and datasets none at all (`NONE`), a directory of this machine shown
    at `/data` (`LOCAL_RO`) or brought in on demand (`API`).
    """

    session_storage: Storage = "TMPFS"
    dataset_access: Access = "API"
    #: Where sessions with storage `BIND` keep their files, and all sessions show their artifacts.
    sessions_root: Path = Path("sessions")
    #: Where the content of artifacts is kept, and what is known of them.
    blobstore_dir: Path = Path("blobstore")
    artifacts_db: Path = Path("artifacts.db")
    #: The directory that `LOCAL_RO` shows. The other modes need none.
    datasets_host_ro: Path | None = None
    #: The root of sandboxes; `sandbox:latest` is the server's own, unless there is an image of this name.
    sandbox_image: str = "sandbox:latest"
    #: Megabytes of files in memory. A size that is chosen raises the sandbox's memory as needed; otherwise three
    #: quarters of that are the most.
    tmpfs_size_mb: int = _Unchosen(1024)
    idle_hibernate_sec: int = 900
    #: The server; `local` is the one that is started when it is needed.
    url: str = "local"
    #: The key to show to the server. The local one needs none.
    api_key: str | None = field(default=None, repr=False)

    @property
    def mode(self) -> str:
        """One of TMPFS_NONE, BIND_NONE, TMPFS_LOCAL, BIND_LOCAL, TMPFS_API and BIND_API."""
        return f"{self.session_storage}_{self.dataset_access.removesuffix('_RO')}"

    @property
    def chosen_tmpfs_size_mb(self) -> int | None:
        """`tmpfs_size_mb`, if somebody chose it."""
        return None if isinstance(self.tmpfs_size_mb, _Unchosen) else self.tmpfs_size_mb

    @staticmethod
    def from_env(path: str | os.PathLike[str] | None = None) -> Config:
        """Reads the environment, then the file at `path`, else the `.env` of the current directory, if there is one.

        What the environment says wins, also where it says nothing: an empty value is the default.
        """
        return Config._from(_settings.read(path))

    @staticmethod
    def _from(given: Mapping[str, str]) -> Config:
        access = cast(Access, one_of("DATASET_ACCESS", given.get("DATASET_ACCESS") or Config.dataset_access, _ACCESSES))
        storage = given.get("SESSION_STORAGE") or Config.session_storage
        if access == "LOCAL_RO" and not given.get("DATASETS_HOST_RO"):
            raise InvalidRequest("DATASET_ACCESS=LOCAL_RO needs a directory", hint="set DATASETS_HOST_RO")
        return Config(
            session_storage=cast(Storage, one_of("SESSION_STORAGE", storage, _STORAGES)),
            dataset_access=access,
            sessions_root=_path(given, "SESSIONS_ROOT") or Config.sessions_root,
            blobstore_dir=_path(given, "BLOBSTORE_DIR") or Config.blobstore_dir,
            artifacts_db=_path(given, "ARTIFACTS_DB") or Config.artifacts_db,
            datasets_host_ro=_path(given, "DATASETS_HOST_RO"),
            sandbox_image=given.get("SANDBOX_IMAGE") or given.get("SANDBOX_IMAGE_NAME") or Config.sandbox_image,
            tmpfs_size_mb=_number(given, "TMPFS_SIZE_MB", Config.tmpfs_size_mb),
            idle_hibernate_sec=_number(given, "IDLE_HIBERNATE_SEC", Config.idle_hibernate_sec),
            url=given.get("BELLJAR_URL") or given.get("SANDBOX_API_URL") or Config.url,
            api_key=given.get("BELLJAR_API_KEY"),
        )


def one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    """The choice that `value` stands for, however it is written."""
    # An enum's own text has its name first.
    plain = str(getattr(value, "value", value)).strip().upper()
    plain = _ALIASES.get(plain, plain)
    if plain not in choices:
        raise InvalidRequest(f"{name} is `{value}`", hint=f"it can be {', '.join(choices)}")
    return plain


def storage_of(value: str) -> Storage:
    return cast(Storage, one_of("session_storage", value, _STORAGES))


def access_of(value: str) -> Access:
    return cast(Access, one_of("dataset_access", value, _ACCESSES))


def _path(given: Mapping[str, str], name: str) -> Path | None:
    return Path(given[name]).expanduser() if given.get(name) else None


def _number(given: Mapping[str, str], name: str, default: int) -> int:
    value = given.get(name)
    if not value:
        return default
    if not value.isdecimal():
        raise InvalidRequest(f"{name} is `{value}`", hint="it is a whole number")
    return int(value)

