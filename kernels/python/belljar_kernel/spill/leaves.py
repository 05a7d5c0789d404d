"""The bulk of values: arrays that own their memory, and what Arrow holds. The rest is structure.

A leaf is in memory, or in a file. There it is one or more columns of the table of its value, or an array on its own.
"""

from __future__ import annotations

import sys

from .columns import ArrowColumn, NumberColumn, TextColumn, nothing_among_text

TYPE_CHECKING = False  # see ../__init__.py
if TYPE_CHECKING:
    from typing import Any

# What is smaller stays with the structure.
MIN_LEAF_BYTES = 16 << 10
# A text object of no letters takes this.
TEXT_BYTES = 49


class ArrayLeaf:
    """An array in one piece, without objects in it other than text."""

    def __init__(self, array: Any) -> None:
        self.value = array
        self.bytes = bytes_of(array)
        self._like = (array.shape, array.dtype, "C" if array.flags.c_contiguous else "F")
        self._writeable = array.flags.writeable
        # Among text.
        self._nothing: Any = None

    def fits(self, rows: int | None) -> bool:
        """Whether it can be written at all: to a table of so many rows, or on its own."""
        array = self.value
        if not array.dtype.hasobject:
            return True
        nothing = nothing_among_text(array) if array.shape == (rows,) else []
        self._nothing = nothing[0] if nothing else None
        return bool(nothing)

    def columns(self, rows: int) -> list[Any] | None:
        """As columns of a table of so many rows, or None if it must be on its own."""
        if rows not in self.value.shape or self.value.ndim > 2:
            return None
        return self._columns(rows)

    def forget(self) -> None:
        self.value = None

    def allocate(self) -> None:
        shape, dtype, order = self._like
        self.value = sys.modules["numpy"].empty(shape, dtype, order)

    def empty_columns(self, rows: int) -> list[Any]:
        """The same columns again, to be filled. What was read-only becomes so when it is complete."""
        return self._columns(rows)

    def complete(self) -> None:
        self.value.flags.writeable = self._writeable

    def addresses(self) -> list[int]:
        return []

    def _columns(self, rows: int) -> list[Any]:
        array = self.value
        if array.dtype.hasobject:
            return [TextColumn(array, self._nothing)]
        if array.ndim == 1:
            return [NumberColumn(array)]
        return [NumberColumn(line) for line in (array if array.shape[1] == rows else array.T)]


class ArrowLeaf:
    """A table of Arrow's, or a column."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.bytes = value.nbytes
        self._is_table = hasattr(value, "schema")
        self._schema = value.schema if self._is_table else None
        self._columns: list[ArrowColumn] = []

    def fits(self, rows: int | None) -> bool:
        return len(self.value) == rows

    def columns(self, _rows: int) -> list[Any]:
        self._columns = [ArrowColumn(chunks) for chunks in self._chunks()]
        return self._columns

    def forget(self) -> None:
        self.value = None
        for column in self._columns:
            column.forget()

    def allocate(self) -> None:
        pass

    def empty_columns(self, _rows: int) -> list[Any]:
        return self._columns

    def complete(self) -> None:
        chunks = [column.whole() for column in self._columns]
        pa = sys.modules["pyarrow"]
        self.value = pa.Table.from_arrays(chunks, schema=self._schema) if self._is_table else chunks[0]

    def addresses(self) -> list[int]:
        """Where its memory is: two that share some would have it twice when they come back."""
        buffers = (buffer for chunks in self._chunks() for chunk in chunks.chunks for buffer in chunk.buffers())
        return [buffer.address for buffer in buffers if buffer is not None and buffer.size]

    def _chunks(self) -> list[Any]:
        return self.value.columns if self._is_table else [self.value]


def leaf_of(part: Any, rows: int | None) -> ArrayLeaf | ArrowLeaf | None:
    """The leaf that a part of a value of so many rows is, if it is one."""
    pa = sys.modules.get("pyarrow")
    kind = type(part)
    leaf: ArrayLeaf | ArrowLeaf | None = None
    if kind is sys.modules["numpy"].ndarray:
        leaf = ArrayLeaf(part) if _is_leaf(part) else None
    elif pa is not None and (kind is pa.ChunkedArray or kind is pa.Table) and part.nbytes >= MIN_LEAF_BYTES:
        leaf = ArrowLeaf(part)
    return leaf if leaf is not None and leaf.fits(rows) else None


def root_of(array: Any) -> Any:
    """The array whose memory this one shows."""
    kind = sys.modules["numpy"].ndarray
    while type(array.base) is kind:
        array = array.base
    return array


def bytes_of(array: Any) -> int:
    """At least so much memory; text lies outside of its array."""
    return int(array.nbytes + (TEXT_BYTES * array.size if array.dtype.hasobject else 0))


def _is_leaf(array: Any) -> bool:
    if array.nbytes < MIN_LEAF_BYTES or not array.flags.forc or array.dtype.itemsize == 0:
        return False
    if array.dtype.hasobject and (array.dtype.kind != "O" or array.ndim != 1):
        return False
    return array.base is None or _is_constant(array)


def _is_constant(array: Any) -> bool:
    """Whether it shows memory of somebody else's that nobody changes."""
    pa = sys.modules.get("pyarrow")
    kind = type(array.base)
    known = kind is bytes or kind.__name__ == "PyCapsule" or (pa is not None and isinstance(array.base, pa.Buffer))
    return known and not array.flags.writeable
