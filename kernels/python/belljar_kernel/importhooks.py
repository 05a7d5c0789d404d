"""Runs code when the user imports a certain module.

matplotlib needs our backend and a font cache, IPython needs a shell for `display`, getpass must ask the guest.
Importing any of them at start-up would take longer than the rest of the kernel, so a finder at the front of
`sys.meta_path` waits for their names.
"""

from __future__ import annotations

import sys
from types import ModuleType

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    # A hook gets the module and a function that executes the module's code, which it must call exactly once.
    Hook = Callable[[ModuleType, Callable[[], None]], None]

_hooks: dict[str, Hook] = {}


def add(name: str, hook: Hook) -> None:
    """Registers a hook for a module that has not been imported yet."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _hooks[name] = hook


class _Finder:
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _hooks:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec: Any = finder.find_spec(name, path, target)
            if spec is not None:
                spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader:
    """Replaces the real loader until the module's code runs, then restores it."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        spec: Any = module.__spec__
        spec.loader = module.__loader__ = self._loader
        # The hook is removed here and not in `find_spec`, which may be called without importing the module. If the
        # import fails, the hook is put back for the next attempt.
        hook = _hooks.pop(module.__name__)
        try:
            hook(module, lambda: self._loader.exec_module(module))
        except BaseException:
            _hooks[module.__name__] = hook
            raise

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


_finder = _Finder()
