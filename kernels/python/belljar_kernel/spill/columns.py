"""Converts parts of values to columns of a Parquet file and back, without changing a bit.

Arrays of numbers and times are written as such, without nulls (NaN and NaT are ordinary values). Types that Parquet
does not have (complex numbers, records, fixed text) are written as bytes. Arrays of objects are written only if they
contain text, with at most one kind of missing value.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from typing import Any


class NumberColumn:
    """A one-dimensional array, or one line of a two-dimensional one."""

    def __init__(self, array: Any) -> None:
        self._array = array
        self.type = _arrow_type(array.dtype)

    def slice(self, start: int, stop: int) -> Any:
        np, pa = sys.modules["numpy"], sys.modules["pyarrow"]
        part = np.ascontiguousarray(self._array[start:stop])
        if part.dtype == bool:
            return pa.array(part)
        return pa.Array.from_buffers(self.type, len(part), [None, pa.py_buffer(part.view(np.uint8))])

    def is_same(self, start: int, stop: int, found: Any) -> bool:
        np = sys.modules["numpy"]
        ours = np.ascontiguousarray(self._array[start:stop])
        theirs = self._of(found)
        return len(ours) == len(theirs) and np.array_equal(ours.view(np.uint8), theirs.view(np.uint8))

    def put(self, start: int, found: Any) -> None:
        """Fills a part of the array."""
        self._array[start : start + len(found)] = self._of(found)

    def _of(self, found: Any) -> Any:
        np = sys.modules["numpy"]
        if found.null_count or found.type != self.type:
            raise ValueError("a column came back as another type")
        if self._array.dtype == bool:
            return found.to_numpy(zero_copy_only=False)
        size = self._array.dtype.itemsize
        return np.frombuffer(found.buffers()[1], self._array.dtype, len(found), found.offset * size)


class TextColumn:
    """An array of `str` objects. `nothing` is its missing value."""

    def __init__(self, array: Any, nothing: Any) -> None:
        self._array = array
        self._nothing = nothing
        self.type = sys.modules["pyarrow"].large_string()

    def slice(self, start: int, stop: int) -> Any:
        nothing = self._nothing
        texts = [None if value is nothing else value for value in self._array[start:stop]]
        return sys.modules["pyarrow"].array(texts, self.type)

    def is_same(self, start: int, stop: int, found: Any) -> bool:
        ours, theirs = self._array[start:stop].tolist(), self._of(found)
        return len(ours) == len(theirs) and all(a is b or (type(a) is str and a == b) for a, b in zip(ours, theirs))

    def put(self, start: int, found: Any) -> None:
        self._array[start : start + len(found)] = self._of(found)

    def _of(self, found: Any) -> list[Any]:
        return [self._nothing if value is None else value for value in found.to_pylist()]


class ArrowColumn:
    """A column of Arrow."""

    def __init__(self, chunks: Any) -> None:
        self._chunks = chunks
        self.type = chunks.type
        # The parts that were loaded.
        self._found: list[Any] = []

    def slice(self, start: int, stop: int) -> Any:
        pa = sys.modules["pyarrow"]
        part = self._chunks.slice(start, stop - start)
        return pa.concat_arrays(part.chunks) if part.num_chunks != 1 else part.chunk(0)

    def is_same(self, start: int, stop: int, found: Any) -> bool:
        ours = self.slice(start, stop)
        return bool(found.type == self.type and _without_nan(ours).equals(_without_nan(found)))

    def forget(self) -> None:
        self._chunks = None

    def put(self, _start: int, found: Any) -> None:
        if found.type != self.type:
            raise ValueError("a column came back as another type")
        self._found.append(found)

    def whole(self) -> Any:
        found, self._found = self._found, []
        return sys.modules["pyarrow"].chunked_array(found, self.type)


def nothing_among_text(array: Any) -> list[Any]:
    """The missing value of an array of text, in a list; an empty list if it is not an array of text."""
    np, pandas = sys.modules["numpy"], sys.modules.get("pandas")
    known = [None, np.nan] if pandas is None else [None, np.nan, pandas.NA, pandas.NaT]
    found = None
    for value in array:
        if type(value) is str:
            continue
        if not any(value is nothing for nothing in known) or not (found is None or found[0] is value):
            return []
        found = [value]
    return [None] if found is None else found


def _arrow_type(dtype: Any) -> Any:
    pa = sys.modules["pyarrow"]
    if dtype.isnative and dtype.fields is None and dtype.subdtype is None:
        if dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize <= 8):
            return pa.from_numpy_dtype(dtype)
        if dtype.kind == "M":
            unit = sys.modules["numpy"].datetime_data(dtype)
            return pa.timestamp(unit[0]) if unit in (("ms", 1), ("us", 1), ("ns", 1)) else pa.int64()
        if dtype.kind == "m":
            return pa.int64()
    return pa.binary(dtype.itemsize)


def _without_nan(array: Any) -> Any:
    """Arrow says that NaN is not the same as NaN; the bits of both are."""
    pa = sys.modules["pyarrow"]
    bits = {pa.float64(): pa.int64(), pa.float32(): pa.int32(), pa.float16(): pa.int16()}.get(array.type)
    return array if bits is None else array.view(bits)
