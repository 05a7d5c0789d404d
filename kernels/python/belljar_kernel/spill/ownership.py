"""Finds the parts of values that have no other references.

    names ──▶ frame ──▶ manager ──▶ block ──▶ array          no other reference: may be moved
                           └──────▶ index ◀── a list         referenced from outside: stays in memory, and so
                                      └─────▶ array          does everything that it refers to

A value may be moved to disk and loaded as another object only if no code can notice. So all references to it must be
known: from names of the namespace, and from other values that are moved too. The collector returns what an object
refers to, and the reference count says how many references it has. If the sum is less than the count, there are
references from outside. In doubt, a part counts as referenced from outside.
"""

from __future__ import annotations

import gc
import sys
import weakref

from ..state import is_one_of, package_of

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

# More parts than usual values have; a frame with a thousand columns that were added one by one has ten thousand.
MAX_PARTS = 500_000

_CONTAINERS = (dict, list, tuple)


class TooManyParts(Exception):
    pass


class Parts:
    """All parts of some values, and the references to them."""

    def __init__(self, roots: dict[int, int], values: dict[int, Any]) -> None:
        """`values` by their ids, `roots` with how many references to each are known: names, and the caller's own."""
        # All other references to a part are its parents', counted in `_known`.
        self._objects: dict[int, Any] = {}
        self._known = dict(roots)
        self._children: dict[int, list[int]] = {}
        self._walk(list(roots), values)
        self._held = self._reach(self._referred_to_from_outside(), set())

    def is_part(self, value: Any) -> bool:
        return id(value) in self._objects

    def is_held(self, value: Any) -> bool:
        """Whether it is reachable from outside. An object that is not a part was created just now, and is not."""
        return id(value) in self._held

    def of(self, value: Any) -> list[Any]:
        """The parts of a value without references from outside, itself included."""
        if id(value) in self._held:
            return []
        return [self._objects[key] for key in self._reach([id(value)], self._held) - self._held]

    def _walk(self, todo: list[int], values: dict[int, Any]) -> None:
        for key in todo:
            self._objects[key] = values[key]
        while todo:
            key = todo.pop()
            children = self._children[key] = []
            for child in _referents(self._objects[key]):
                if not _is_interesting(child):
                    continue
                number = id(child)
                children.append(number)
                self._known[number] = self._known.get(number, 0) + 1
                if number not in self._objects:
                    if len(self._objects) >= MAX_PARTS:
                        raise TooManyParts
                    self._objects[number] = child
                    todo.append(number)

    def _referred_to_from_outside(self) -> set[int]:
        # Two references to each are our own: the one in the dictionary, and the argument.
        objects, known = self._objects, self._known
        outside = {key for key in objects if sys.getrefcount(objects[key]) - 2 != known[key]}
        # A weak reference would notice that it is freed.
        free = objects.keys() - outside
        outside |= {key for key in objects if not all(id(ref) in free for ref in weakref.getweakrefs(objects[key]))}
        return outside

    def _reach(self, todo: Iterable[int], border: set[int]) -> set[int]:
        reached = set(todo)
        todo = list(reached)
        while todo:
            for child in self._children[todo.pop()]:
                if child not in reached and child not in border:
                    reached.add(child)
                    todo.append(child)
        return reached


def _referents(value: Any) -> list[Any]:
    if _is_array(value):
        # The collector does not track arrays.
        return [] if value.base is None else [value.base]
    if package_of(type(value)) == "pandas" or is_one_of(type(value), _CONTAINERS):
        return gc.get_referents(value)
    return []


def _is_interesting(value: Any) -> bool:
    """Whether references to it matter: not for text, numbers, classes and the like."""
    kind = type(value)
    if is_one_of(kind, _CONTAINERS) or kind is weakref.ReferenceType or _is_array(value):
        return True
    if issubclass(kind, type):
        return False
    package = package_of(kind)
    return package == "pandas" or (package == "pyarrow" and hasattr(value, "nbytes"))


def _is_array(value: Any) -> bool:
    return type(value) is sys.modules["numpy"].ndarray
