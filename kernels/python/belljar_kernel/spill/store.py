"""The files of a value: one table, and one file for every array that does not fit into it."""

from __future__ import annotations

from .files import Directory, Draft, Kept, read_array, read_table, write_array, write_table
from .leaves import root_of

TYPE_CHECKING = False  # see ../__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .plan import Move

MAX_NAME_BYTES = 100


class Store:
    """Leaves in a file: columns of a table, or one array."""

    def __init__(self, kept: Kept, leaves: list[Any], rows: int | None) -> None:
        self.kept = kept
        self._leaves = leaves
        self._rows = rows

    def read(self) -> None:
        """Loads the leaves into memory."""
        for leaf in self._leaves:
            leaf.allocate()
        if self._rows is None:
            read_array(self.kept, self._leaves[0].value)
        else:
            columns = [column for leaf in self._leaves for column in leaf.empty_columns(self._rows)]
            read_table(self.kept, columns, self._rows)
        for leaf in self._leaves:
            leaf.complete()


def write(move: Move, directory: Directory) -> list[Store]:
    """Writes the leaves of a value, all or none."""
    together: list[tuple[Any, list[Any]]] = []
    alone = []
    rows = move.rows
    for leaf in move.leaves:
        columns = None if rows is None else leaf.columns(rows)
        if columns is None:
            alone.append(leaf)
        else:
            together.append((leaf, columns))
    stores: list[Store] = []
    name = _file_name(move)
    try:
        if together:
            leaves = [leaf for leaf, _ in together]
            table = _named(move.value, together)
            size = sum(leaf.bytes for leaf in leaves)
            kept = _written(directory, f"{name}.parquet", lambda d: write_table(d, table, rows or 0, size, directory))
            stores.append(Store(kept, leaves, rows))
        for number, leaf in enumerate(alone):
            file = f"{name}.npy" if move.is_array else f"{name}.{number}.npy"
            kept = _written_array(directory, file, leaf)
            stores.append(Store(kept, [leaf], None))
    except BaseException:
        for store in stores:
            store.kept.remove()
        raise
    return stores


def _written(directory: Directory, name: str, write: Callable[[Draft], None]) -> Kept:
    draft = Draft(directory, name)
    try:
        write(draft)
        return draft.finish()
    except BaseException:
        draft.discard()
        raise


def _written_array(directory: Directory, name: str, leaf: Any) -> Kept:
    return _written(directory, name, lambda draft: write_array(draft, leaf.value, directory))


def _file_name(move: Move) -> str:
    if move.name.isidentifier() and len(move.name.encode()) <= MAX_NAME_BYTES:
        return move.name
    return f"value-{id(move.value):x}"


def _named(value: Any, parts: list[tuple[Any, list[Any]]]) -> dict[str, Any]:
    """Columns by name: with the names of the value's own columns, where they are known."""
    labels = _labels(value)
    named: dict[str, Any] = {}
    for number, (leaf, columns) in enumerate(parts):
        known = labels.get(id(leaf.value), [])
        for at, column in enumerate(columns):
            name = known[at] if len(known) == len(columns) else f"part {number}"
            if name in named:
                name = f"{name} ({len(named)})"
            named[name] = column
    return named


def _labels(value: Any) -> dict[int, list[str]]:
    """The names of the columns of a leaf, by its id. They are only for users who read the file."""
    if hasattr(value, "column_names"):
        return {id(value): list(value.column_names)}
    labels: dict[int, list[str]] = {}
    names = [str(value.name)] if value.ndim == 1 else [str(name) for name in value.columns]
    for block in value._mgr.blocks:
        here = names if value.ndim == 1 else [names[at] for at in block.mgr_locs]
        values = block.values
        for suffix, attribute in (("", "_ndarray"), ("", "_pa_array"), ("", "_data"), (" is missing", "_mask")):
            part = getattr(values, attribute, None)
            if part is not None:
                labels[id(_bulk(part))] = [name + suffix for name in here]
        if hasattr(values, "base"):
            labels[id(root_of(values))] = here
    for at, name in enumerate(value.index.names):
        level = value.index if value.index.nlevels == 1 else None
        part = getattr(level, "_data", None)
        if part is not None:
            labels[id(_bulk(getattr(part, "_ndarray", part)))] = [str(name) if name is not None else f"index {at}"]
    return labels


def _bulk(part: Any) -> Any:
    return root_of(part) if hasattr(part, "base") else part
