"""The structure of values without their leaves: a pickle with references to leaves, and to objects that stay in memory.

Values that are moved together are one structure, so that they share the same parts after loading: an index of two
frames, an array and its views, blocks that pandas copies before it changes one of them.

No user code runs. Only objects of pandas, numpy and Python's own containers are pickled; any other object, and objects
with references from outside, stay in memory.
"""

from __future__ import annotations

import io
import pickle
import sys

from ..state import is_one_of, package_of
from .leaves import root_of

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .ownership import Parts

_ATOMS = (str, int, type(None), bool, float, complex, bytes, type(Ellipsis))
_CONTAINERS = (list, tuple, slice)
_HASHED = (dict, set, frozenset)
# The known attributes of frames and indexes; others come from the user, and pickling would lose them.
_OF_FRAMES = frozenset("_mgr _attrs _flags _name _typ _metadata _item_cache".split())
_OF_INDEXES = frozenset(
    "_data _name _names _cache _id _references _freq _range _levels _codes sortorder _attributes _comparables".split()
)


def dump(values: list[Any], parts: Parts, leaves: dict[int, int], held: list[Any]) -> bytes:
    """The structure of values. `leaves` has the number of each leaf by id; `held` gets the objects that stay."""
    file = io.BytesIO()
    _Pickler(file, parts, leaves, held).dump(values)
    return file.getvalue()


def load(structure: bytes, leaf: Callable[[int], Any], held: list[Any]) -> list[Any]:
    values: list[Any] = _Unpickler(structure, leaf, held).load()
    return values


def has_attributes_of_the_users(value: Any) -> bool:
    pandas = sys.modules.get("pandas")
    if pandas is None or not isinstance(value, (pandas.DataFrame, pandas.Series)):
        return False
    return not _OF_FRAMES.issuperset(vars(value))


def is_like(value: Any, twin: Any) -> bool:
    """Whether a rebuilt value has the same structure."""
    if type(value) is not type(twin) or value.shape != twin.shape:
        return False
    if not hasattr(value, "_mgr"):
        return getattr(value, "dtype", None) == getattr(twin, "dtype", None)
    if vars(value).keys() != vars(twin).keys() or list(value.attrs) != list(twin.attrs) or value.flags != twin.flags:
        return False
    for ours, theirs in zip(value.axes, twin.axes):
        same = type(ours) is type(theirs) and ours.dtype == theirs.dtype and list(ours.names) == list(theirs.names)
        if not same or getattr(ours, "freq", None) != getattr(theirs, "freq", None):
            return False
    blocks = list(zip(value._mgr.blocks, twin._mgr.blocks))
    return len(value._mgr.blocks) == len(twin._mgr.blocks) and all(
        type(ours) is type(theirs) and ours.values.dtype == theirs.values.dtype and ours.shape == theirs.shape
        for ours, theirs in blocks
    )


class _Pickler(pickle.Pickler):
    def __init__(self, file: Any, parts: Parts, leaves: dict[int, int], held: list[Any]) -> None:
        super().__init__(file, protocol=5)
        self._parts = parts
        self._leaves = leaves
        self._held = held
        self._held_at: dict[int, int] = {}
        self._pandas: Any = sys.modules.get("pandas")

    def persistent_id(self, value: Any) -> Any:
        kind = type(value)
        if is_one_of(kind, _ATOMS):
            return None
        if kind is sys.modules["numpy"].ndarray:
            return self._array(value)
        number = self._leaves.get(id(value))
        if number is not None:
            return ("leaf", number)
        if self._parts.is_held(value) or not self._is_taken_apart(value, kind):
            return self._hold(value)
        return None

    def _array(self, array: Any) -> Any:
        root = root_of(array)
        number = self._leaves.get(id(root))
        if number is None:
            return self._hold(array)
        if array is root:
            return ("leaf", number)
        offset = array.__array_interface__["data"][0] - root.__array_interface__["data"][0]
        return ("view", number, self._hold(array.dtype), offset, array.shape, array.strides, array.flags.writeable)

    def _hold(self, value: Any) -> Any:
        number = self._held_at.setdefault(id(value), len(self._held))
        if number == len(self._held):
            self._held.append(value)
        return ("held", number)

    def _is_taken_apart(self, value: Any, kind: type) -> bool:
        if is_one_of(kind, _HASHED):
            # Rebuilding it would call `__hash__` of a user's object.
            return all(is_one_of(type(key), _ATOMS) for key in value)
        if is_one_of(kind, _CONTAINERS):
            return True
        if self._pandas is None or package_of(kind) != "pandas":
            return False
        if issubclass(kind, type) or kind.__name__ in ("BlockValuesRefs", "cython_function_or_method"):
            return False
        if isinstance(value, self._pandas.Index):
            return _OF_INDEXES.issuperset(vars(value))
        return True

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, (self._pandas.DataFrame, self._pandas.Series)):
            # pandas' own method would leave traces in the rebuilt object.
            state = {key: part for key, part in vars(value).items() if key != "_flags"}
            return _frame, (type(value), state, value.flags.allows_duplicate_labels)
        name = type(value).__name__
        if name.endswith("Block") and hasattr(value, "refs"):
            _, (values, placement, ndim) = value.__reduce__()
            return _block, (values, placement, ndim, value.refs)
        if hasattr(value, "_pa_array") and isinstance(value, self._pandas.api.extensions.ExtensionArray):
            # Its own method would copy the data.
            state = {key: part for key, part in vars(value).items() if key != "_cache"}
            return _arrow_array, (type(value), state, "_cache" in vars(value))
        if name.endswith("BlockManager"):
            return _manager, (type(value), value.blocks, value.axes)
        if isinstance(value, self._pandas.Index):
            # A range has no memory that others could share.
            references = vars(value).get("_references")
            if references is not None and references.has_reference():
                make, arguments = value.__reduce__()[:2]
                return _index, (make, arguments, references)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def __init__(self, structure: bytes, leaf: Callable[[int], Any], held: list[Any]) -> None:
        super().__init__(io.BytesIO(structure))
        self._leaf = leaf
        self._held = held

    def persistent_load(self, reference: Any) -> Any:
        what, number, *rest = reference
        if what == "held":
            return self._held[number]
        leaf = self._leaf(number)
        if what == "leaf":
            return leaf
        (_, dtype), offset, shape, strides, writeable = rest
        view = sys.modules["numpy"].ndarray(shape, self._held[dtype], leaf, offset, strides)
        view.flags.writeable = writeable
        return view

    def find_class(self, module: str, name: str) -> Any:
        # Classes and functions are references, never imported by name.
        if module == __name__:
            return globals()[name]
        return super().find_class(module, name)


def _frame(kind: Any, state: dict[str, Any], allows_duplicate_labels: bool) -> Any:
    from pandas.core.flags import Flags

    frame = kind.__new__(kind)
    for key, part in state.items():
        object.__setattr__(frame, key, part)
    object.__setattr__(frame, "_flags", Flags(frame, allows_duplicate_labels=allows_duplicate_labels))
    return frame


def _block(values: Any, placement: Any, ndim: int, references: Any) -> Any:
    """A block that is registered with all others that share its memory."""
    from pandas._libs.internals import _unpickle_block

    block = _unpickle_block(values, placement, ndim)
    block.refs = references
    references.add_reference(block)
    return block


def _manager(kind: type, blocks: tuple[Any, ...], axes: list[Any]) -> Any:
    if kind.__name__.startswith("Single"):
        return kind(blocks[0], axes[0])
    return kind(blocks, axes)


def _index(make: Any, arguments: tuple[Any, ...], references: Any) -> Any:
    index = make(*arguments)
    index._references = references
    references.add_index_reference(index)
    return index


def _arrow_array(kind: Any, state: dict[str, Any], has_cache: bool) -> Any:
    array = kind.__new__(kind)
    if has_cache:
        state["_cache"] = {}
    vars(array).update(state)
    return array
