"""Moves large values of an idle kernel to disk, and loads them before user code runs again.

    idle ──spill──▶ plan ──▶ write, read back, compare ──▶ names point to stand-ins, memory is freed ──┐
                     │ files are memory, nothing large, disturbed, disk full: nothing changes         │
    exec ◀── names point to their values, files are removed ◀──restore── an exec, or shutdown ◀────────┘

The rule for correctness: no user code runs while a name points to a stand-in. So a cell finds every value, whether it
uses a name, a function, `globals()` or a string that a library evaluates. A kernel with other threads, or with a user's
signal handler, is not spilled; and while a value is on disk the garbage collector is off, because it could call a
`__del__`.

Only data is moved: frames, series, arrays and Arrow tables of the namespace (`plan`), and only parts without other
references (`ownership`); parts that others refer to stay in memory (`skeleton`). The data itself (`leaves`, `columns`)
is written to files (`store`, `files`) in `.spilled` of the directory of `save()`. If a kernel dies, its files are
complete and can be loaded: `load(".spilled/df")`.
"""

from __future__ import annotations

import gc
import signal
import sys

from .. import aio, frames, interrupts, memory, state
from . import skeleton, store
from .files import Directory, Unfaithful, is_memory, says_full
from .ownership import TooManyParts
from .plan import Plan

TYPE_CHECKING = False  # see ../__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# How often a plan is made again without the values that could not be written.
MAX_PLANS = 5
# How many values a report lists, moved and not moved.
MAX_LISTED = 100

DEFAULT_BYTES = 1 << 20

_FOLDER = ".spilled"


class Disturbed(Exception):
    """The guest has sent a request; nothing is moved."""


class Busy(Exception):
    """User code may run at any time; the message is the reason."""


class Spill:
    """The values of one kernel that are on disk."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._away: Away | None = None

    def spill(self, request: dict[str, Any], meanwhile: Callable[[], None]) -> dict[str, Any]:
        """Moves large values to disk; returns which were moved, and which not. `meanwhile` may raise `Disturbed`."""
        report = {"spilled": [], "stayed": [], "bytes": 0, "disturbed": False, "full": False, "reason": ""}
        if self._away is not None or "numpy" not in sys.modules:
            return report
        collecting = gc.isenabled()
        try:
            _check_idle()
            if collecting:
                # Garbage would count as a reference to a value. This may call a `__del__`, so it comes first.
                interrupts.call_user(gc.collect)
            gc.disable()
            self._move(request, meanwhile, report)
        except (Disturbed, KeyboardInterrupt):
            report["disturbed"] = True
        except Busy as reason:
            report["reason"] = str(reason)
        except TooManyParts:
            report["reason"] = "there are too many objects"
        except BaseException as error:
            # Nothing has been moved.
            report["full"] = report["full"] or (isinstance(error, OSError) and says_full(error))
            report["reason"] = f"{type(error).__name__}: {error}"
        if self._away is None:
            _collect(collecting)
        else:
            self._away.collecting = collecting
            memory.trim()
        return report

    @property
    def is_away(self) -> bool:
        """Whether anything is on disk. Then user code must not run."""
        return self._away is not None

    def restore(self) -> str:
        """Loads everything; returns a sentence about what could not be loaded."""
        if self._away is None:
            return ""
        away, self._away = self._away, None
        try:
            return away.restore()
        finally:
            _collect(away.collecting)

    def _move(self, request: dict[str, Any], meanwhile: Callable[[], None], report: dict[str, Any]) -> None:
        frame_bytes = int(request.get("frame_bytes", DEFAULT_BYTES))
        array_bytes = int(request.get("array_bytes", DEFAULT_BYTES))
        if is_memory(frames.directory()):
            return
        directory = Directory(f"{frames.directory()}/{_FOLDER}", meanwhile)
        refused: dict[int, str] = {}
        plan: Any = None
        for _ in range(MAX_PLANS):
            meanwhile()
            # The last plan must be gone, or it would count as a reference to the values.
            del plan
            plan = Plan(self._namespace, frame_bytes, array_bytes, refused)
            if not plan.moves:
                break
            meanwhile()
            directory.prepare()
            away = _write(plan, directory, refused, report)
            if away is not None:
                # From here on everything can be loaded again, whatever happens.
                self._away = away
                moved = [move.describe() for move in plan.moves]
                report["spilled"], report["bytes"] = moved[:MAX_LISTED], sum(entry["bytes"] for entry in moved)
                away.take_over()
                plan.let_go()
                break
        report["stayed"] = [{"name": name, "reason": why} for name, why in list(plan.stayed.items())[:MAX_LISTED]]


class Away:
    """The values on disk, and how to load them."""

    def __init__(self, plan: Plan, structure: bytes, stores: list[store.Store]) -> None:
        self._structure = structure
        self._leaves = plan.leaves
        self._held = plan.held
        self._slots = [move.slots for move in plan.moves]
        self._entries = [state.entry_of(move.name, move.value) for move in plan.moves]
        self._stores = stores
        self.collecting = True

    def take_over(self) -> None:
        """Makes the names point to stand-ins."""
        for entry, slots in zip(self._entries, self._slots):
            for names, name in slots:
                names[name] = state.StandIn(entry)

    def restore(self) -> str:
        try:
            for each in self._stores:
                each.read()
            values = skeleton.load(self._structure, lambda number: self._leaves[number].value, self._held)
        except BaseException as error:
            return self._give_up(error)
        for value, slots in zip(values, self._slots):
            for names, name in slots:
                names[name] = value
        for each in self._stores:
            each.kept.remove()
        return ""

    def _give_up(self, error: BaseException) -> str:
        """Removes the names, so that user code gets a NameError and not a stand-in."""
        lost = []
        for slots in self._slots:
            for names, name in slots:
                del names[name]
                lost.append(name)
        for each in self._stores:
            each.kept.close()
        return f"{', '.join(lost)} had been moved to disk and could not be brought back: {error}"


def _write(plan: Plan, directory: Directory, refused: dict[int, str], report: dict[str, Any]) -> Away | None:
    """Writes everything; None if something could not be written, which is then among the refused."""
    structure = plan.structure()
    for move in plan.unlike(structure):
        refused[id(move.value)] = "it would not be the same when it came back"
    stores: list[store.Store] = []
    away = None
    try:
        for move in plan.moves:
            if id(move.value) not in refused:
                try:
                    stores += store.write(move, directory)
                except Exception as error:
                    refused[id(move.value)] = _why_not(error, directory, report)
        if not any(id(move.value) in refused for move in plan.moves):
            away = Away(plan, structure, stores)
        return away
    finally:
        if away is None:
            for each in stores:
                each.kept.remove()


def _why_not(error: Exception, directory: Directory, report: dict[str, Any]) -> str:
    """Why one value is not moved. An error that concerns all values is raised again."""
    if isinstance(error, Disturbed):
        raise error
    if isinstance(error, OSError) and says_full(error):
        report["full"] = True
        return f"there is no room for it in {directory.path}"
    return str(error) if isinstance(error, Unfaithful) else f"{type(error).__name__}: {error}"


def _check_idle() -> None:
    if len(sys._current_frames()) > 1:
        raise Busy("other threads are running")
    if aio.is_active():
        raise Busy("asyncio tasks are pending")
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        if callable(handler) and not interrupts.is_ours(handler):
            raise Busy(f"signal {int(number)} has a handler")


def _collect(collecting: bool) -> None:
    if collecting:
        gc.enable()
