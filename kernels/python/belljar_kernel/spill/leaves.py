"""The large parts of values ("leaves"): arrays that own their memory, and data of Arrow. The rest is structure.

A leaf is in memory or in a file. In a file it is one or more columns of its value's table, or a separate array.
"""

from __future__ import annotations

import sys

from .columns import ArrowColumn, NumberColumn, TextColumn, nothing_among_text

TYPE_CHECKING = False  # see ../__init__.py
if TYPE_CHECKING:
    from typing import Any

# Smaller arrays stay in the structure.
MIN_LEAF_BYTES = 16 << 10
# The size of an empty `str` object.
TEXT_BYTES = 49


class ArrayLeaf:
    """A contiguous array without objects other than text."""

    def __init__(self, array: Any) -> None:
        self.value = array
        self.bytes = bytes_of(array)
        self._like = (array.shape, array.dtype, "C" if array.flags.c_contiguous else "F")
        self._writeable = array.flags.writeable
        # Among text.
        self._nothing: Any = None

    def fits(self, rows: int | None) -> bool:
        """Whether it can be written: to a table with so many rows, or separately."""
        array = self.value
        if not array.dtype.hasobject:
            return True
        nothing = nothing_among_text(array) if array.shape == (rows,) else []
        self._nothing = nothing[0] if nothing else None
        return bool(nothing)

    def columns(self, rows: int) -> list[Any] | None:
        """Its columns in a table with so many rows; None if it must be written separately."""
        if rows not in self.value.shape or self.value.ndim > 2:
            return None
        return self._columns(rows)

    def forget(self) -> None:
        self.value = None

    def allocate(self) -> None:
        shape, dtype, order = self._like
        self.value = sys.modules["numpy"].empty(shape, dtype, order)

    def empty_columns(self, rows: int) -> list[Any]:
        """The same columns, to be filled. A read-only array becomes read-only again when it is complete."""
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
    """A table or a column of Arrow."""

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
        """The addresses of its memory: two leaves that share memory would have it twice after loading."""
        buffers = (buffer for chunks in self._chunks() for chunk in chunks.chunks for buffer in chunk.buffers())
        return [buffer.address for buffer in buffers if buffer is not None and buffer.size]

    def _chunks(self) -> list[Any]:
        return self.value.columns if self._is_table else [self.value]


def leaf_of(part: Any, rows: int | None) -> ArrayLeaf | ArrowLeaf | None:
    """The leaf for a part of a value with so many rows, if it is one."""
    pa = sys.modules.get("pyarrow")
    kind = type(part)
    leaf: ArrayLeaf | ArrowLeaf | None = None
    if kind is sys.modules["numpy"].ndarray:
        leaf = ArrayLeaf(part) if _is_leaf(part) else None
    elif pa is not None and (kind is pa.ChunkedArray or kind is pa.Table) and part.nbytes >= MIN_LEAF_BYTES:
        leaf = ArrowLeaf(part)
    return leaf if leaf is not None and leaf.fits(rows) else None


def root_of(array: Any) -> Any:
    """The array that owns the memory of this one."""
    kind = sys.modules["numpy"].ndarray
    while type(array.base) is kind:
        array = array.base
    return array


def bytes_of(array: Any) -> int:
    """A lower bound of its memory, with the text objects of an array of text."""
    return int(array.nbytes + (TEXT_BYTES * array.size if array.dtype.hasobject else 0))


def _is_leaf(array: Any) -> bool:
    if array.nbytes < MIN_LEAF_BYTES or not array.flags.forc or array.dtype.itemsize == 0:
        return False
    if array.dtype.hasobject and (array.dtype.kind != "O" or array.ndim != 1):
        return False
    return array.base is None or _is_constant(array)


def _is_constant(array: Any) -> bool:
    """Whether it is a read-only view of memory that another object owns."""
    pa = sys.modules.get("pyarrow")
    kind = type(array.base)
    known = kind is bytes or kind.__name__ == "PyCapsule" or (pa is not None and isinstance(array.base, pa.Buffer))
    return known and not array.flags.writeable
