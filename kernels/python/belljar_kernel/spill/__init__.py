"""Large values of an idle kernel go to disk, and are back before the user's code runs again.

    idle ──spill──▶ plan ──▶ write, read back, compare ──▶ names point to stand-ins, memory is freed ──┐
                     │ files are memory, nothing worth it, disturbed, disk full: all stays as it is    │
    exec ◀── names point to their values, files are removed ◀──restore── an exec arrives, or the end ◀─┘

The rule that makes it sound: no code of the user's runs while a name points to a stand-in. Whatever a cell does, by
name, in a function, through `globals()` or a string that a library evaluates, finds everything in its place. So a
kernel with other threads, or with a signal handler of the user's, is not spilled; and while something is on disk the
garbage collector rests, which could call a `__del__`.

Only data goes: frames, series, arrays and Arrow tables that names of the namespace stand for (`plan`), and only what
nobody else has (`ownership`); what others hold is left in memory and found again (`skeleton`). The bulk (`leaves`,
`columns`) goes into files (`store`, `files`) below `.spilled` in the directory of `save()`. A kernel that dies leaves
them there, whole, and they can be loaded: `load(".spilled/df")`.
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

# A plan without the values that could not be written, and again: each is smaller than the one before.
MAX_PLANS = 5
# Values that a report names, of either kind.
MAX_TOLD = 100

DEFAULT_BYTES = 1 << 20

_FOLDER = ".spilled"


class Disturbed(Exception):
    """The guest wants something; values stay where they are."""


class Busy(Exception):
    """Code of the user's may run at any time; the reason is for people."""


class Spill:
    """The values of one kernel that are on disk."""

    def __init__(self, namespace: dict[str, Any]) -> None:
        self._namespace = namespace
        self._away: Away | None = None

    def spill(self, request: dict[str, Any], meanwhile: Callable[[], None]) -> dict[str, Any]:
        """Moves what is large to disk; tells what went and what did not. `meanwhile` may raise `Disturbed`."""
        report = {"spilled": [], "stayed": [], "bytes": 0, "disturbed": False, "full": False, "reason": ""}
        if self._away is not None or "numpy" not in sys.modules:
            return report
        collecting = gc.isenabled()
        try:
            _check_idle()
            if collecting:
                # Garbage would count as somebody who refers to a value. It may call a `__del__`: now or never.
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
            # Whatever it is, nothing has been moved.
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
        """Whether anything is on disk. Code of the user's must not run then."""
        return self._away is not None

    def restore(self) -> str:
        """Brings everything back; what could not be, in words."""
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
            # Of the last one nothing may be left, or it would count as somebody who refers to the values.
            del plan
            plan = Plan(self._namespace, frame_bytes, array_bytes, refused)
            if not plan.moves:
                break
            meanwhile()
            directory.prepare()
            away = _write(plan, directory, refused, report)
            if away is not None:
                # From here on everything can be brought back, whatever happens.
                self._away = away
                told = [move.tell() for move in plan.moves]
                report["spilled"], report["bytes"] = told[:MAX_TOLD], sum(entry["bytes"] for entry in told)
                away.take_over()
                plan.let_go()
                break
        report["stayed"] = [{"name": name, "reason": why} for name, why in list(plan.stayed.items())[:MAX_TOLD]]


class Away:
    """What is on disk, and how it comes back."""

    def __init__(self, plan: Plan, structure: bytes, stores: list[store.Store]) -> None:
        self._structure = structure
        self._leaves = plan.leaves
        self._held = plan.held
        self._slots = [move.slots for move in plan.moves]
        self._entries = [state.entry_of(move.name, move.value) for move in plan.moves]
        self._stores = stores
        self.collecting = True

    def take_over(self) -> None:
        """Names point to stand-ins from now on."""
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
        """Without their names: better an error that names them than a stand-in in the user's hands."""
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
    """Why one value stays. What concerns all of them is raised again."""
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
