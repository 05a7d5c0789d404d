"""Settings of an agent's sandboxes, read from the environment and a `.env` file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from belljar import _settings
from belljar._options import Access, Storage
from belljar.errors import InvalidRequest

__all__ = ["Config"]

_STORAGES = ("TMPFS", "BIND")
_ACCESSES = ("NONE", "LOCAL_RO", "API")
# Other names for the same value.
_ALIASES = {"API_TMPFS": "API"}


class _Default(int):
    """A default that no setting overrides: the server may use less."""


@dataclass(frozen=True)
class Config:
    """Settings of an agent's sandboxes.

    >>> config = Config.from_env()
    >>> manager = SessionManager.from_config(config)

    `session_storage` and `dataset_access` make six modes, and `mode` is the name of the selected one. Files of a
    session are in memory (`TMPFS`) or on disk (`BIND`). Datasets are off (`NONE`), a directory of this machine that is
    mounted read-only at `/data` (`LOCAL_RO`), or uploaded and fetched on demand (`API`).
    """

    session_storage: Storage = "TMPFS"
    dataset_access: Access = "API"
    #: The directory for the files of sessions with storage `BIND`, and for the artifacts of all sessions.
    sessions_root: Path = Path("sessions")
    #: The directory for the content of artifacts, and the database that lists them.
    blobstore_dir: Path = Path("blobstore")
    artifacts_db: Path = Path("artifacts.db")
    #: The directory that `LOCAL_RO` mounts.
    datasets_host_ro: Path | None = None
    #: The image of sandboxes. `sandbox:latest` is the server's own, unless an image with this name exists.
    sandbox_image: str = "sandbox:latest"
    #: Megabytes for files in memory. If set, the sandbox's memory is raised as needed; the default is limited to three
    #: quarters of that memory.
    tmpfs_size_mb: int = _Default(1024)
    idle_hibernate_sec: int = 900
    #: The server's address; `local` is the local server, which is started when it is needed.
    url: str = "local"
    #: The API key. The local server needs none.
    api_key: str | None = field(default=None, repr=False)

    @property
    def mode(self) -> str:
        """One of TMPFS_NONE, BIND_NONE, TMPFS_LOCAL, BIND_LOCAL, TMPFS_API and BIND_API."""
        return f"{self.session_storage}_{self.dataset_access.removesuffix('_RO')}"

    @property
    def chosen_tmpfs_size_mb(self) -> int | None:
        """`tmpfs_size_mb` if it was set, None if it is the default."""
        return None if isinstance(self.tmpfs_size_mb, _Default) else self.tmpfs_size_mb

    @staticmethod
    def from_env(path: str | os.PathLike[str] | None = None) -> Config:
        """Reads the environment, then the file at `path`; by default `.env` in the current directory, if it exists.

        A variable of the environment wins over the file, even if it is empty: an empty value means the default.
        """
        return Config._from(_settings.read(path))

    @staticmethod
    def _from(given: Mapping[str, str]) -> Config:
        access = cast(Access, one_of("DATASET_ACCESS", given.get("DATASET_ACCESS") or Config.dataset_access, _ACCESSES))
        storage = given.get("SESSION_STORAGE") or Config.session_storage
        if access == "LOCAL_RO" and not given.get("DATASETS_HOST_RO"):
            raise InvalidRequest("DATASET_ACCESS=LOCAL_RO needs a directory", hint="set DATASETS_HOST_RO to it")
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
    """The choice that `value` names, in any case, or as an enum member."""
    # The text of an enum member begins with the name of the enum.
    plain = str(getattr(value, "value", value)).strip().upper()
    plain = _ALIASES.get(plain, plain)
    if plain not in choices:
        raise InvalidRequest(f"{name} is `{value}`", hint=f"expected {', '.join(choices)}")
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
        raise InvalidRequest(f"{name} is `{value}`", hint="expected a whole number")
    return int(value)

