"""`save(df, name)` and `load(name)`: tables that outlive the kernel, as Parquet files in the data directory.

Saving replaces the file atomically: a load at the same time, or after a crash, returns the old table or the new one.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from typing import Any

# The mounted project directory, if there is one; otherwise a link to the session's directory.
_WORKSPACE, _SESSION = "/workspace", "/session"
_SUFFIX = ".parquet"


def save(df: Any, name: str) -> str:
    """Writes a DataFrame to the data directory and returns the file's path; `load(name)` reads it.

    A Series is saved as a table with one column. Folders in the name are created.
    """
    import pandas as pd

    if isinstance(df, str) and not isinstance(name, str):
        raise TypeError("save(df, name): the DataFrame comes first")
    if isinstance(df, pd.Series):
        df = df.to_frame(df.name if df.name is not None else "value")
    if not isinstance(df, pd.DataFrame):
        raise TypeError(f"save(df, name): expected a DataFrame, got {type(df).__name__}")
    path = _path(name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    fresh = f"{os.path.dirname(path)}/.{os.getpid()}.{os.path.basename(path)}.part"
    try:
        df.to_parquet(fresh)
        os.replace(fresh, path)
    except BaseException:
        if os.path.exists(fresh):
            os.unlink(fresh)
        raise
    return path


def load(name: str) -> Any:
    """Reads a DataFrame that `save` wrote, or any Parquet file of the data directory."""
    import pandas as pd

    path = _path(name)
    if not os.path.exists(path):
        there = ", ".join(sorted(_names())) or "nothing yet"
        raise FileNotFoundError(f"there is no {path}; saved so far: {there}")
    return pd.read_parquet(path)


def directory() -> str:
    """The directory for tables."""
    where = os.path.realpath(_WORKSPACE)
    if where != _SESSION and os.path.ismount(where):
        return f"{_WORKSPACE}/data"
    return f"{_SESSION if os.path.isdir(_SESSION) else os.getcwd()}/data"


def _path(name: str) -> str:
    if not isinstance(name, str):
        raise TypeError(f"a name is text, not {type(name).__name__}")
    plain = name[: -len(_SUFFIX)] if name.endswith(_SUFFIX) else name
    parts = plain.split("/")
    if not all(parts) or any(part in (".", "..") or "\0" in part for part in parts):
        raise ValueError(f"{name!r} is not the name of a file in the data directory")
    return f"{directory()}/{plain}{_SUFFIX}"


def _names() -> list[str]:
    top = directory()
    found = []
    for folder, _, files in os.walk(top):
        for file in files:
            if file.endswith(_SUFFIX):
                found.append(os.path.relpath(f"{folder}/{file}", top)[: -len(_SUFFIX)])
    return found
