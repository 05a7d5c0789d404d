"""Options of the public calls: each list is written once, as a `TypedDict` that signatures unpack.

Options that are left out, or None, are chosen by the server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, TypedDict

Language = Literal["python", "bash", "javascript", "typescript", "r"]
Storage = Literal["TMPFS", "BIND"]
Access = Literal["NONE", "LOCAL_RO", "API"]
#: Where code may connect to: `{"allow": [...], "inject": [...]}`, or one of the words.
Network = Literal["none", "open"] | Mapping[str, Any]
#: Volumes by name: `rw` to read and write, `ro` to read only.
VolumeOptions = Mapping[str, Literal["rw", "ro"]]
#: Whether executions make checkpoints, or how many are kept: `{"max": 20, "max_bytes": "256M"}`.
Checkpoints = bool | Mapping[str, Any]
#: Bytes, or text such as "512M".
Size = int | str
#: How far a page must have loaded: `networkidle` is half a second without any request.
Until = Literal["commit", "domcontentloaded", "load", "networkidle", "none"]


class LimitOptions(TypedDict, total=False):
    """Resource limits of a sandbox. Sizes are bytes, or text such as `"512M"`."""

    memory: Size
    cpus: float
    pids: int
    tmpfs: Size


class RunOptions(TypedDict, total=False):
    """Options of `run`: one execution in a new sandbox."""

    #: The language of the code; `python` by default.
    language: Language
    #: Seconds that the code may run; 60 by default.
    timeout: float | None
    #: Environment variables of the code.
    env: Mapping[str, str] | None
    #: Resource limits of the sandbox.
    limits: LimitOptions | None
    #: Access to datasets: `NONE`, or `LOCAL_RO` for the server's directory at `/data`.
    datasets: Access | None
    #: The image of the sandbox.
    image: str | None
    #: Where the code may connect to.
    network: Network | None
    #: Volumes, mounted at `/volumes/NAME`.
    volumes: VolumeOptions | None
    #: How many bytes of stdout, and of stderr, are kept; 1 MiB by default.
    max_output: Size | None


class SessionOptions(TypedDict, total=False):
    """Options of `Client.session`: the sandbox of a session."""

    #: Where files in `/session` are kept: in memory (`TMPFS`) or on disk (`BIND`).
    storage: Storage | None
    #: Access to datasets: none, a read-only directory at `/data`, or uploads and sources on demand.
    datasets: Access | None
    #: Resource limits of the sandbox.
    limits: LimitOptions | None
    #: Seconds that the session lives after its last use.
    ttl: int | None
    #: Seconds without use after which the session ends, if that is earlier than `ttl`.
    idle_timeout: int | None
    #: Environment variables of all code in the session.
    env: Mapping[str, str] | None
    #: Any JSON of yours, returned in `session.info.metadata`.
    metadata: Mapping[str, Any] | None
    #: The image of the sandbox.
    image: str | None
    #: Where code may connect to, within what the server allows: `"none"`, `"open"`, or
    #: `{"allow": ["example.org", "*.example.com:443"]}`.
    network: Network | None
    #: Volumes, such as `{"models": "ro", "results": "rw"}`, mounted at `/volumes/NAME`; see `client.volumes`.
    volumes: VolumeOptions | None
    #: Whether every execution makes a checkpoint, for `session.restore()` and `session.fork()`.
    checkpoints: Checkpoints | None
    #: A directory of the server's machine, mounted at `/workspace` to read and write, where the server allows it.
    #: New files belong to the directory's owner.
    workspace: str | os.PathLike[str] | None
    #: Seconds without use after which large Python values are moved to disk; 0 means never.
    idle_hibernate_sec: int | None


class ExecOptions(TypedDict, total=False):
    """Options of an execution in a session."""

    #: Seconds that it may run; 60 by default.
    timeout: float | None
    #: Environment variables, in addition to those of the session.
    env: Mapping[str, str] | None
    #: How many bytes of stdout, and of stderr, are kept; 1 MiB by default.
    max_output: Size | None
    #: An id of your choice. The same id with the same code is executed only once.
    exec_id: str | None


class TabOptions(TypedDict, total=False):
    """Options of every browser action."""

    #: The number of the tab; the current tab by default.
    tab: int | None
    #: Seconds that the action may take; 30 by default.
    timeout: float | None


class ElementOptions(TabOptions, total=False):
    """Options of browser actions on an element, which exactly one of the first three selects."""

    #: The element's `ref` in the last snapshot.
    ref: str | None
    #: A CSS selector.
    selector: str | None
    #: The text of the element.
    text: str | None


class WaitOptions(TabOptions, total=False):
    """What a browser action waits for."""

    #: How far the page must have loaded.
    until: Until | None
    #: A CSS selector that must match an element.
    wait_for: str | None
    #: Milliseconds to wait after that.
    wait_ms: int | None


def checked(options: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The options that have a value. Raises `TypeError` for a name that `kind`, a `TypedDict`, does not have."""
    known: set[str] = kind.__required_keys__ | kind.__optional_keys__  # type: ignore[attr-defined]
    for name in options:
        if name not in known:
            raise TypeError(f"unexpected keyword argument {name!r}; expected one of {', '.join(sorted(known))}")
    return given(**options)


def given(**fields: Any) -> dict[str, Any]:
    """Only the fields that have a value: the server chooses the others."""
    return {name: value for name, value in fields.items() if value is not None}


def limit_options(
    memory: Size | None, cpus: float | None, pids: int | None, tmpfs: Size | None = None
) -> LimitOptions | None:
    """The limits that have a value; None if none has."""
    limits: LimitOptions = {}
    if memory is not None:
        limits["memory"] = memory
    if cpus is not None:
        limits["cpus"] = cpus
    if pids is not None:
        limits["pids"] = pids
    if tmpfs is not None:
        limits["tmpfs"] = tmpfs
    return limits or None
