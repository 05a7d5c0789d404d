"""Describes the variables: name, type, size, and a preview of the value.

This must not run user code. So it uses no `repr` and no attribute of an unknown class: `type(x)` instead of
`x.__class__`, exact types instead of `isinstance`, and its own bounded walk through containers. For an object of any
other class only the type is reported. Libraries format their data frames and arrays, after a check of their contents.
An alarm ends it if it takes too long; then the remaining variables are only counted.
"""

from __future__ import annotations

import _signal
import os
import sys
import warnings
from itertools import islice
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType

from .wire import encode_json

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from typing import Any

MAX_VARIABLES = 500
MAX_IMPORTS = 500
MAX_SECONDS = 1.0
MAX_PREVIEW_CHARS = 200
MAX_NAME_CHARS = 200
# Limits of one preview: elements of a container, levels of nested containers, and values in total.
MAX_ITEMS = 20
MAX_DEPTH = 3
MAX_VALUES = 100
# Of a table.
MAX_ROWS = 5
MAX_COLUMNS = 8
# Characters of a column or an element.
MAX_WORD_CHARS = 40
# Converting a longer number to decimal is slow.
MAX_INT_BITS = 600

_PLAIN = frozenset((type(None), bool, float, complex, type(Ellipsis), type(NotImplemented)))
_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
}
# Classes of the standard library whose `repr` is short and calls no user code.
_SHORT = {
    "datetime": ("date", "datetime", "time", "timedelta", "timezone"),
    "decimal": ("Decimal",),
    "fractions": ("Fraction",),
    "pathlib": ("Path", "PosixPath", "PurePosixPath", "PureWindowsPath"),
    "uuid": ("UUID",),
    "ipaddress": ("IPv4Address", "IPv4Network", "IPv6Address", "IPv6Network"),
}
_qualname_of = type.__dict__["__qualname__"].__get__
_module_of = type.__dict__["__module__"].__get__
_mro_of = type.__dict__["__mro__"].__get__
_members_of = type.__dict__["__dict__"].__get__
_flags_of = type.__dict__["__flags__"].__get__
_HEAP_TYPE = 1 << 9


class StandIn:
    """Replaces a value while it is on disk (`spill`), with its description."""

    __slots__ = ("entry",)

    def __init__(self, entry: dict[str, Any]) -> None:
        self.entry = {**entry, "on_disk": True}


class _Late(BaseException):
    """The time is up."""


def snapshot(namespace: dict[str, Any]) -> bytes:
    """The body of a state message. Below `interrupts.call_user`, on the main thread."""
    # A library may warn while it formats something; no cell has caused that.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return encode_json(_describe(list(namespace.items())))


def _describe(items: list[tuple[str, Any]]) -> dict[str, Any]:
    variables: list[dict[str, Any]] = []
    imports: list[dict[str, Any]] = []
    items = [(name, value) for name, value in items if type(name) is str and name[:1] != "_"]
    done = 0
    alarm = _Alarm(MAX_SECONDS)
    try:
        with alarm:
            for name, value in items:
                entry = entry_of(name, value)
                entries, most = (imports, MAX_IMPORTS) if "module" in entry else (variables, MAX_VARIABLES)
                if len(entries) < most:
                    entries.append(entry)
                    done += 1
    except _Late:
        pass
    return {"variables": variables, "imports": imports, "cwd": _cwd(), "truncated": len(items) - done}


class _Alarm:
    """Raises `_Late` inside its block when the time is up. Between cells the user has no alarm set."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._armed = False
        self._before: Any = None

    def __enter__(self) -> None:
        self._before = _signal.signal(_signal.SIGALRM, self._ring)
        self._armed = True
        # Repeated, as the first exception may be caught by a bare `except`.
        _signal.setitimer(_signal.ITIMER_REAL, self._seconds, self._seconds / 10)

    def __exit__(self, *_: Any) -> None:
        self._armed = False
        _signal.setitimer(_signal.ITIMER_REAL, 0)
        # None means a handler that was not set by Python and cannot be restored.
        _signal.signal(_signal.SIGALRM, _signal.SIG_DFL if self._before is None else self._before)

    def _ring(self, _signum: int, _frame: Any) -> None:
        if self._armed:
            raise _Late


def entry_of(name: str, value: Any) -> dict[str, Any]:
    """The description of a variable."""
    name = name[:MAX_NAME_CHARS]
    kind = type(value)
    if kind is StandIn:
        return {**value.entry, "name": name}
    try:
        if issubclass(kind, ModuleType):
            return _import(name, value)
        entry = {"name": name, "type": type_name(kind), "preview": ""}
        entry.update(_details(value, kind))
    except Exception:
        # For example a container that another thread changes.
        entry = {"name": name, "type": type_name(kind), "preview": f"<{type_name(kind)}>"}
    entry["preview"] = _cut(entry["preview"], MAX_PREVIEW_CHARS)
    return entry


def _import(name: str, module: ModuleType) -> dict[str, Any]:
    # Only existing attributes: a module may compute others on access.
    inside = ModuleType.__getattribute__(module, "__dict__")
    full, version = inside.get("__name__"), inside.get("__version__")
    entry = {"name": name, "module": full[:MAX_NAME_CHARS] if type(full) is str else name}
    if type(version) is str:
        entry["version"] = version[:MAX_NAME_CHARS]
    return entry


def _details(value: Any, kind: type) -> dict[str, Any]:
    """The size, the preview and, for arrays and tables, the shape and the type of the elements."""
    table = _table(value, kind)
    if table is not None:
        return table
    if kind is FunctionType:
        return {"preview": _signature(value.__name__, value), "size": sys.getsizeof(value)}
    if kind is MethodType and type(value.__func__) is FunctionType:
        return {"preview": _signature(value.__func__.__name__, value.__func__, bound=True)}
    if kind is BuiltinFunctionType:
        return {"preview": f"{value.__name__}(...)"}
    if issubclass(kind, type):
        return {"type": "class", "preview": _class_signature(value)}
    details: dict[str, Any] = {"preview": _Preview().of(value, 0)}
    if _flags_of(kind) & _HEAP_TYPE == 0:
        # A class that is not defined in Python, so C code computes its size.
        details["size"] = sys.getsizeof(value)
    return details


def type_name(kind: type) -> str:
    """`int`, `datetime.datetime`, `pandas.DataFrame`: the class, with the package that users import it from."""
    module, name = _module_of(kind), _qualname_of(kind)
    if type(name) is not str:
        return "object"
    if type(module) is not str or module in ("builtins", "__main__"):
        return _cut(name, MAX_NAME_CHARS)
    return _cut(f"{module.partition('.')[0]}.{name}", MAX_NAME_CHARS)


def package_of(kind: type) -> str:
    """The package of a class, according to its `__module__`. Runs no user code, even with a metaclass."""
    module = _module_of(kind)
    return module.partition(".")[0] if type(module) is str else ""


def is_one_of(kind: type, kinds: Any) -> bool:
    """Whether it is one of these classes. `in` would call its `__hash__` or `__eq__`."""
    return any(kind is known for known in kinds)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


class _Preview:
    """Like `repr`, for a limited number of values, without calling user code."""

    def __init__(self) -> None:
        self._left = MAX_VALUES

    def of(self, value: Any, depth: int, most: int = MAX_PREVIEW_CHARS) -> str:
        self._left -= 1
        kind = type(value)
        if kind in _PLAIN:
            return repr(value)
        if kind is int:
            bits = value.bit_length()
            return repr(value) if bits <= MAX_INT_BITS else f"<int of {bits} bits>"
        if kind is str or kind is bytes or kind is bytearray:
            return _cut(repr(value[:most]), most)
        if kind is range:
            return f"range({self.of(value.start, depth)}, {self.of(value.stop, depth)})"
        if kind is dict:
            return self._mapping(value, depth)
        if kind in _BRACKETS:
            return self._sequence(value, kind, depth)
        if _is_numpy_scalar(kind) or (_is_short(kind) and _has_known_zone(value)):
            return repr(value)
        return f"<{type_name(kind)}>"

    def _sequence(self, value: Any, kind: type, depth: int) -> str:
        opening, closing = _BRACKETS[kind]
        if not value:
            return "set()" if kind is set else "frozenset()" if kind is frozenset else opening + closing
        if depth >= MAX_DEPTH:
            return f"{opening}…{closing}"
        shown = [self.of(item, depth + 1, MAX_WORD_CHARS) for item in self._some(value)]
        if len(shown) < len(value):
            shown.append(f"… {len(value)} in all")
        elif kind is tuple and len(shown) == 1:
            closing = ",)"
        return opening + ", ".join(shown) + closing

    def _mapping(self, value: dict[str, Any], depth: int) -> str:
        if depth >= MAX_DEPTH:
            return "{…}"
        shown = [
            f"{self.of(key, depth + 1, MAX_WORD_CHARS)}: {self.of(item, depth + 1, MAX_WORD_CHARS)}"
            for key, item in self._some(value.items())
        ]
        if len(shown) < len(value):
            shown.append(f"… {len(value)} in all")
        return "{" + ", ".join(shown) + "}"

    def _some(self, values: Any) -> Any:
        """The first values, within the limit of one preview."""
        for value in islice(values, MAX_ITEMS):
            if self._left <= 0:
                return
            yield value


def _is_short(kind: type) -> bool:
    module = _module_of(kind)
    if type(module) is not str:
        return False
    # `pathlib` became a package in Python 3.13.
    package = module.partition(".")[0]
    return _qualname_of(kind) in _SHORT.get(package, ()) and _is_known_as(kind, package)


def _has_known_zone(value: Any) -> bool:
    """Whether the time zone of a time is not of a user's class."""
    zone = type(getattr(value, "tzinfo", None))
    return zone is type(None) or _is_known_as(zone, "datetime") or _is_known_as(zone, "zoneinfo")


def _is_known_as(kind: type, package: str) -> bool:
    """Whether the package really has this class, not only a class with the same name."""
    module = sys.modules.get(package)
    return module is not None and vars(module).get(_qualname_of(kind)) is kind


def _signature(name: str, function: FunctionType, bound: bool = False) -> str:
    """From the code object: `inspect.signature` would follow attributes that the user can set."""
    code: CodeType = function.__code__
    preview = _Preview()
    names = code.co_varnames
    positional = list(names[: code.co_argcount])
    keyword_only = names[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    defaults = function.__defaults__ or ()
    parts = positional[:]
    for index, default in zip(range(len(parts) - len(defaults), len(parts)), defaults):
        parts[index] += "=" + preview.of(default, 1, MAX_WORD_CHARS)
    if code.co_posonlyargcount:
        parts.insert(code.co_posonlyargcount, "/")
    after = code.co_argcount + code.co_kwonlyargcount
    if code.co_flags & 0x04:
        parts.append("*" + names[after])
        after += 1
    elif keyword_only:
        parts.append("*")
    for keyword in keyword_only:
        default = (function.__kwdefaults__ or {}).get(keyword, preview)
        parts.append(keyword if default is preview else f"{keyword}={preview.of(default, 1, MAX_WORD_CHARS)}")
    if code.co_flags & 0x08:
        parts.append("**" + names[after])
    prefix = "async " if code.co_flags & 0x180 else ""
    return f"{prefix}{name}({', '.join(parts[1:] if bound and positional else parts)})"


def _class_signature(kind: type) -> str:
    name = _qualname_of(kind)
    for base in _mro_of(kind):
        init = _members_of(base).get("__init__")
        if type(init) is FunctionType:
            return _signature(name, init, bound=True)
        if init is not None:
            break
    return f"{name}()"


# Tables and arrays. Only the libraries' own classes, and only of libraries that are loaded.


def _table(value: Any, kind: type) -> dict[str, Any] | None:
    package = package_of(kind)
    describe = {"numpy": _numpy, "pandas": _pandas, "pyarrow": _arrow}.get(package)
    return describe(value, kind, sys.modules.get(package)) if describe is not None else None


def _numpy(value: Any, kind: type, numpy: Any) -> dict[str, Any] | None:
    if numpy is None or kind is not numpy.ndarray:
        return None
    first = value[(slice(MAX_ITEMS),) * value.ndim]
    if value.dtype.hasobject:
        preview = f"<array of objects: {_Preview().of(list(first.flat[:MAX_ITEMS]), 1)}>"
    else:
        preview = numpy.array2string(first, threshold=MAX_ITEMS, edgeitems=2)
        if first.size < value.size:
            preview += " …"
    return _data(value.shape, str(value.dtype), value.nbytes, preview)


def _is_numpy_scalar(kind: type) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and _module_of(kind) == "numpy" and issubclass(kind, numpy.generic)


def _pandas(value: Any, kind: type, pandas: Any) -> dict[str, Any] | None:
    if pandas is None:
        return None
    if kind is pandas.DataFrame:
        first = value.iloc[:MAX_ROWS, :MAX_COLUMNS]
        names = list(value.columns[:MAX_COLUMNS])
        dtypes = [f"{_Preview().of(n, 1, MAX_WORD_CHARS)}: {d}" for n, d in zip(names, first.dtypes)]
        if len(names) < value.shape[1]:
            dtypes.append(f"… {value.shape[1]} columns")
        columns = [first.iloc[:, at] for at in range(first.shape[1])]
        if all(map(_is_showable, [first.index, names, *columns])):
            preview = first.to_string(max_colwidth=MAX_WORD_CHARS)
        else:
            preview = "columns: " + ", ".join(_Preview().of(name, 1, MAX_WORD_CHARS) for name in names)
        size = int(value.memory_usage(index=True, deep=False).sum())
        return _data(value.shape, ", ".join(dtypes), size, preview)
    if kind is pandas.Series:
        first = value.iloc[:MAX_ROWS]
        if _is_showable(first) and _is_showable(first.index):
            preview = first.to_string()
        else:
            preview = _Preview().of(list(first), 1)
        return _data(value.shape, str(value.dtype), int(value.memory_usage(index=True, deep=False)), preview)
    if issubclass(kind, pandas.Index):
        preview = _Preview().of(list(value[:MAX_ITEMS]), 1)
        return _data(value.shape, str(value.dtype), int(value.memory_usage(deep=False)), preview)
    return None


def _is_showable(values: Any) -> bool:
    """Whether pandas can print these few values without calling user code, and briefly."""
    return all(_is_word(value) for value in list(values))


def _is_word(value: Any) -> bool:
    kind = type(value)
    if kind is str or kind is bytes:
        return len(value) < 10_000
    if kind is int:
        return bool(value.bit_length() <= MAX_INT_BITS)
    if kind is tuple:
        return len(value) <= MAX_ITEMS and all(map(_is_word, value))
    module = _module_of(kind)
    return kind in _PLAIN or _is_short(kind) or _is_numpy_scalar(kind) or (
        # Timestamp, Timedelta, NaT, NA, Period, Interval: classes of pandas itself.
        type(module) is str and module.startswith("pandas.")
    )


def _arrow(value: Any, kind: type, pyarrow: Any) -> dict[str, Any] | None:
    if pyarrow is None:
        return None
    if kind is pyarrow.Table or kind is pyarrow.RecordBatch:
        some = value.slice(0, MAX_ROWS).select(list(range(min(MAX_COLUMNS, value.num_columns))))
        dtypes = [f"{_cut(field.name, MAX_WORD_CHARS)}: {field.type}" for field in some.schema]
        if some.num_columns < value.num_columns:
            dtypes.append(f"… {value.num_columns} columns")
        shape = (value.num_rows, value.num_columns)
        return _data(shape, ", ".join(dtypes), value.nbytes, _Preview().of(some.to_pydict(), 0))
    if kind is pyarrow.ChunkedArray or issubclass(kind, pyarrow.Array):
        preview = _Preview().of(value.slice(0, MAX_ITEMS).to_pylist(), 0)
        return _data((len(value),), str(value.type), value.nbytes, preview)
    return None


def _data(shape: Any, dtype: str, size: int, preview: str) -> dict[str, Any]:
    shape = [int(length) for length in shape]
    return {"shape": shape, "dtype": _cut(dtype, MAX_PREVIEW_CHARS), "size": int(size), "preview": preview}


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        # It was removed.
        return ""
