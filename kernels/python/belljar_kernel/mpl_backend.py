"""The matplotlib backend of the kernel: Agg, with a `show()` that sends images to the caller."""

from __future__ import annotations

from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg

from . import figures

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from typing import Any


class FigureManager(FigureManagerBase):
    def show(self) -> None:
        """`figure.show()`"""
        figures.show(self.canvas.figure)

    @classmethod
    def pyplot_show(cls, *, block: Any = None) -> None:
        figures.show_all()


class FigureCanvas(FigureCanvasAgg):
    manager_class = FigureManager


def show(*_args: Any, **_kwargs: Any) -> None:
    """`plt.show()`, for versions of matplotlib that look for a function in the module."""
    figures.show_all()
