"""Decides which values are moved to disk: large ones of known types, with names and without other references."""

from __future__ import annotations

import builtins
import sys

from .. import state
from . import skeleton
from .leaves import bytes_of, leaf_of
from .ownership import Parts

TYPE_CHECKING = False  # see ../__init__.py
if TYPE_CHECKING:
    from typing import Any

    # A namespace and a name in it.
    Slot = tuple[dict[str, Any], str]

# The most values that are moved, largest first: each has an open file.
MAX_VALUES = 200


class Move:
    """A value to move, with its names and its own leaves."""

    def __init__(self, value: Any, slots: list[Slot]) -> None:
        self.value = value
        self.slots = slots
        self.leaves: list[Any] = []

    @property
    def name(self) -> str:
        return self.slots[0][1]

    @property
    def bytes(self) -> int:
        return sum(leaf.bytes for leaf in self.leaves)

    @property
    def rows(self) -> int | None:
        """The rows of its table; an array has none."""
        return None if self.is_array else len(self.value)

    @property
    def is_array(self) -> bool:
        return type(self.value) is sys.modules["numpy"].ndarray

    def describe(self) -> dict[str, Any]:
        return {"name": self.name, "type": state.type_name(type(self.value)), "bytes": self.bytes}


class Plan:
    """The values to move. `refused` has values, by id, that cannot be moved, with the reason."""

    # `Parts` while the values are examined, and None in between.
    _parts: Any

    def __init__(self, namespace: dict[str, Any], frame_bytes: int, array_bytes: int, refused: dict[int, str]) -> None:
        self._frame_bytes = frame_bytes
        self._array_bytes = array_bytes
        # Why large values are not moved, by name.
        self.stayed: dict[str, str] = {}
        self.moves = _candidates(namespace)
        for move in self.moves:
            if id(move.value) in refused:
                self.stayed[move.name] = refused[id(move.value)]
        self.moves = [move for move in self.moves if id(move.value) not in refused]
        # A value that is not moved may refer to parts of another, which then cannot be moved either.
        while not self._is_settled():
            pass
        self.leaves = [leaf for move in self.moves for leaf in move.leaves]
        # Objects that stay in memory and that the structure refers to.
        self.held: list[Any] = []

    def structure(self) -> bytes:
        numbers = {id(leaf.value): number for number, leaf in enumerate(self.leaves)}
        return skeleton.dump([move.value for move in self.moves], self._parts, numbers, self.held)

    def unlike(self, structure: bytes) -> list[Move]:
        """Values that differ from a copy that is rebuilt from the structure and the leaves in memory."""
        twins = skeleton.load(structure, lambda number: self.leaves[number].value, self.held)
        return [move for move, twin in zip(self.moves, twins) if not skeleton.is_like(move.value, twin)]

    def let_go(self) -> None:
        """Frees the values. Their leaves can be loaded again."""
        self._parts = None
        for leaf in self.leaves:
            leaf.forget()
        self.moves = []

    def _is_settled(self) -> bool:
        # The last result must be gone, or it would count as a reference to the values.
        self._parts = None
        for move in self.moves:
            move.leaves = []
        # References to each value that we know: its names, its move, and one of the two tables.
        roots = {id(move.value): len(move.slots) + 2 for move in self.moves}
        self._parts = Parts(roots, {id(move.value): move.value for move in self.moves})
        found = self._find_leaves()
        stay = [move for move in self.moves if not self._may_go(move, found[id(move.value)])]
        self.moves = [move for move in self.moves if move not in stay]
        self.moves.sort(key=lambda move: -move.bytes)
        for move in self.moves[MAX_VALUES:]:
            self.stayed[move.name] = "there are too many values"
        settled = not stay and len(self.moves) <= MAX_VALUES
        del self.moves[MAX_VALUES:]
        return settled

    def _find_leaves(self) -> dict[int, int]:
        """Gives every leaf to the first value that has it; returns the bytes that each value has, shared or not."""
        reachable: dict[int, int] = {}
        owners: dict[int, Any] = {}
        addresses: dict[int, int] = {}
        by_value: dict[int, list[Any]] = {}
        for move in self.moves:
            leaves = by_value[id(move.value)] = []
            for part in self._parts.of(move.value):
                if id(part) not in owners:
                    leaf = owners[id(part)] = leaf_of(part, move.rows)
                    for address in leaf.addresses() if leaf is not None else ():
                        addresses[address] = addresses.get(address, 0) + 1
                if owners[id(part)] is not None:
                    leaves.append(owners[id(part)])
        taken: set[int] = set()
        for move in self.moves:
            free = [leaf for leaf in by_value[id(move.value)] if all(addresses[a] == 1 for a in leaf.addresses())]
            reachable[id(move.value)] = sum(leaf.bytes for leaf in free)
            move.leaves = [leaf for leaf in free if id(leaf) not in taken]
            taken.update(map(id, move.leaves))
        return reachable

    def _may_go(self, move: Move, reachable: int) -> bool:
        least = self._array_bytes if move.is_array else self._frame_bytes
        if self._parts.is_held(move.value):
            reason = "something else refers to it"
        elif skeleton.has_attributes_of_the_users(move.value):
            reason = "it has attributes of its own"
        elif reachable < least:
            reason = "most of it is shared with something else, or is no plain data"
        else:
            return True
        if _size(move.value) >= least:
            self.stayed[move.name] = reason
        return False


def _candidates(namespace: dict[str, Any]) -> list[Move]:
    """Values of known types, each with all its names. The last result has the name `_` in builtins."""
    kinds = _kinds()
    found: dict[int, Move] = {}
    for names, keys in ((namespace, list(namespace)), (vars(builtins), ["_"])):
        for key in keys:
            value = names.get(key)
            if type(key) is str and state.is_one_of(type(value), kinds):
                found.setdefault(id(value), Move(value, [])).slots.append((names, key))
    return list(found.values())


def _kinds() -> tuple[type, ...]:
    wanted = (("numpy", "ndarray"), ("pandas", "DataFrame"), ("pandas", "Series"), ("pyarrow", "Table"))
    found = (vars(sys.modules[module]).get(name) for module, name in wanted if module in sys.modules)
    return tuple(kind for kind in found if isinstance(kind, type))


def _size(value: Any) -> int:
    if type(value) is sys.modules["numpy"].ndarray:
        return bytes_of(value)
    if hasattr(value, "schema"):
        return int(value.nbytes)
    usage = value.memory_usage(index=True, deep=False)
    return int(usage if isinstance(usage, int) else usage.sum())
