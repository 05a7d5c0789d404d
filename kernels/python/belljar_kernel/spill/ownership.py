"""Which parts of some values belong to nobody else.

    names ──▶ frame ──▶ manager ──▶ block ──▶ array          nobody else: may go
                           └──────▶ index ◀── a list         held from outside: stays where it is, and so
                                      └─────▶ array          does everything that can be reached from it

A value may go to disk and come back as another object only if nobody can tell. So every reference to it must be known:
from names of the namespace, and from other values that go as well. The collector tells what an object refers to, the
reference count tells how many refer to it; whoever is missing in the sum is outside. What cannot be explained counts as
held from outside.
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

# More parts than any sensible number of values has; a frame of a thousand columns that were added one by one has ten
# thousand.
MAX_PARTS = 500_000

_CONTAINERS = (dict, list, tuple)


class TooManyParts(Exception):
    pass


class Parts:
    """Everything that some values are made of, and who else refers to it."""

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
        """Whether somebody outside can get at it. What is no part was made just now, and is nobody's."""
        return id(value) in self._held

    def of(self, value: Any) -> list[Any]:
        """The parts of a value that nobody else has, itself included."""
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
        # Somebody who has a weak reference would see it die.
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
        # Arrays are unknown to the collector.
        return [] if value.base is None else [value.base]
    if package_of(type(value)) == "pandas" or is_one_of(type(value), _CONTAINERS):
        return gc.get_referents(value)
    return []


def _is_interesting(value: Any) -> bool:
    """Whether it matters who has it: not for text, numbers, classes and the like."""
    kind = type(value)
    if is_one_of(kind, _CONTAINERS) or kind is weakref.ReferenceType or _is_array(value):
        return True
    if issubclass(kind, type):
        return False
    package = package_of(kind)
    return package == "pandas" or (package == "pyarrow" and hasattr(value, "nbytes"))


def _is_array(value: Any) -> bool:
    return type(value) is sys.modules["numpy"].ndarray
