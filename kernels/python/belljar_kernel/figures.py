"""Shows matplotlib figures as images.

Every figure that is open when a cell ends, from any backend, is shown and closed; `plt.show()` does the same at once. A
figure is sent once per cell, even if the cell shows it several times.

Our backend is set while matplotlib is imported, not in the environment: programs that the user starts inherit the
environment, and cannot import our module.
"""

from __future__ import annotations

import io
import os
import sys
from types import ModuleType

from . import importhooks

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

BACKEND = "module://belljar_kernel.mpl_backend"

_font_cache: str | None = None
# The figures that this cell has sent. Strong references, because an id could be reused.
_shown: list[Any] = []


def prepare(font_cache: str | None) -> None:
    """Registers the import hook for matplotlib."""
    global _font_cache
    _font_cache = font_cache
    importhooks.add("matplotlib", _while_importing)


def is_figure(value: Any) -> bool:
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(value, module.Figure)


def png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    # Like Jupyter: cropped to its content, with the background the figure has.
    figure.savefig(buffer, format="png", bbox_inches="tight", facecolor=figure.get_facecolor())
    return buffer.getvalue()


def png_once(figure: Any) -> bytes | None:
    """The image; None if this cell has already sent it."""
    if any(figure is shown for shown in _shown):
        return None
    image = png(figure)
    _shown.append(figure)
    return image


def show(figure: Any) -> None:
    image = png_once(figure)
    if image is not None:
        from . import display

        display.publish("display", ({"image/png": image, "text/plain": repr(figure)}, {}))


def show_all() -> None:
    """plt.show(): sends the open figures in the order of their numbers, and closes them."""
    from matplotlib._pylab_helpers import Gcf

    for manager in Gcf.get_all_fig_managers():
        show(manager.canvas.figure)
    Gcf.destroy_all()


def end_of_cell(render: bool) -> None:
    """Shows (unless the cell was interrupted) and closes the open figures, and forgets which were shown."""
    helpers = sys.modules.get("matplotlib._pylab_helpers")
    try:
        if helpers is not None and helpers.Gcf.figs:
            if render:
                show_all()
            else:
                helpers.Gcf.destroy_all()
    finally:
        if _shown:
            _shown.clear()


def _while_importing(module: ModuleType, load: Callable[[], None]) -> None:
    _copy_font_cache()
    if os.environ.get("MPLBACKEND"):
        load()
        return
    os.environ["MPLBACKEND"] = BACKEND
    try:
        load()
    finally:
        del os.environ["MPLBACKEND"]


def _copy_font_cache() -> None:
    """Provides a font cache: without one matplotlib spends seconds on reading every font."""
    target = os.environ.get("MPLCONFIGDIR")
    if not _font_cache or not target:
        return
    try:
        os.makedirs(target, exist_ok=True)
        present = set(os.listdir(target))
        for name in os.listdir(_font_cache):
            if name.startswith("fontlist-") and name not in present:
                with open(os.path.join(_font_cache, name), "rb") as source:
                    content = source.read()
                # Renamed into place: another process may be importing matplotlib at this moment.
                partial = os.path.join(target, f".{name}.{os.getpid()}")
                with open(partial, "wb") as copy:
                    copy.write(content)
                os.replace(partial, os.path.join(target, name))
    except OSError:
        # Without the cache matplotlib builds its own; slow, not wrong.
        pass
