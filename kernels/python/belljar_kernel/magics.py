"""The IPython shell behind `%magic`, `!command`, `name?` and IPython.display.

It is an InteractiveShell on the user's namespace, but it does not run cells: our kernel does. It writes no file, starts
no thread and keeps no history. Importing IPython takes 0.1 to 0.3 s, so the shell is created when a cell first needs
it, or in the preloaded process, from which every kernel gets it for free.
"""

from __future__ import annotations

import atexit
import builtins
import importlib
import os
import shlex
import subprocess
import sys
from types import ModuleType

import IPython
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magics.script import ScriptMagics
from IPython.core.profiledir import ProfileDir
from IPython.utils.text import LSString, SList
from traitlets import Any as AnyTrait
from traitlets import observe
from traitlets.config import Config, Configurable

from . import display, figures, tracebacks

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Users expect `!` to run bash, if it is installed.
_SHELLS = ("/bin/bash", "/bin/sh")

_SCRIPT_PROGRAMS = ("script", "bash", "sh", "python", "python3", "perl", "ruby")
_IPYTHON_SCRIPT_OPTIONS = ("--out", "--err", "--bg", "--proc")
_NO_RAISE = "--no-raise-error"

_IPYTHON_NAMES = frozenset(
    ("_", "__", "___", "__builtin__", "_ih", "_oh", "In", "Out", "get_ipython", "exit", "quit", "open")
)

# What IPython stores between cells; it lives as long as the kernel.
_store: dict[str, Any] = {}


def create_shell(main: ModuleType) -> None:
    """Creates the one shell of this process. Called when IPython has been imported."""
    config = Config()
    config.HistoryManager.enabled = False
    # Never opened; without a name IPython would use its profile directory, which we do not have.
    config.HistoryManager.hist_file = ":memory:"
    # There is no terminal for colors. The name of this theme is lower case since IPython 9.
    config.InteractiveShell.colors = "nocolor" if IPython.version_info >= (9,) else "NoColor"
    namespace = main.__dict__
    before = dict(namespace)
    shell = Shell.instance(config=config, user_module=main, user_ns=namespace)
    # The namespace belongs to the user: remove IPython's names except %cd's directory history.
    for name in _IPYTHON_NAMES & set(namespace):
        if name in before:
            namespace[name] = before[name]
        else:
            del namespace[name]
    # At exit it would clear the namespace, which the user's own handlers still need.
    atexit.unregister(shell.atexit_operations)
    # IPython does this around each cell, and `%%capture` relies on it.
    shell.display_trap.__enter__()
    builtins.get_ipython = shell.get_ipython  # type: ignore[attr-defined]
    # IPython has replaced it. Ours calls IPython's, and also works before IPython is loaded.
    builtins.display = display.display  # type: ignore[attr-defined]
    display.ipython_format = shell.display_formatter.format


def transform(source: str) -> str:
    """The Python code for a cell, as IPython transforms it."""
    return str(Shell.instance().transform_cell(source))


class _Publisher(DisplayPublisher):
    """Receives all displays of IPython."""

    def publish(self, data: dict[str, Any], metadata: dict[str, Any] | None = None, *_: Any, **__: Any) -> None:
        display.publish("display", (dict(data), metadata or {}))

    def clear_output(self, wait: bool = False) -> None:
        """Does nothing: what has been sent cannot be removed."""


class _DisplayHook(DisplayHook):
    """Values of expressions in code that IPython itself runs, such as the body of `%%capture`."""

    def __call__(self, result: Any = None) -> None:
        if result is not None and not self.quiet():
            bundle = display.bundle_of(result)
            if bundle is not None:
                display.publish("result", bundle)


class _NoProfile(ProfileDir):
    """IPython 8 needs a profile; this one has no directory."""

    @observe("location")
    def _location_changed(self, change: Any) -> None:
        """Does nothing: IPython's method would create the directory."""


class InlineBackend(Configurable):
    """Accepts `%config InlineBackend.figure_format = "retina"`, which notebooks use; it has no effect here."""

    figure_format = AnyTrait().tag(config=True)
    figure_formats = AnyTrait().tag(config=True)
    rc = AnyTrait().tag(config=True)
    close_figures = AnyTrait().tag(config=True)
    print_figure_kwargs = AnyTrait().tag(config=True)


class Shell(InteractiveShell):
    display_pub_class = _Publisher
    displayhook_class = _DisplayHook

    def init_ipython_dir(self, ipython_dir: Any) -> None:
        """Does nothing: IPython would create it in the user's home directory."""

    def init_profile_dir(self, profile_dir: Any) -> None:
        self.profile_dir = _NoProfile(location=os.devnull)

    def init_virtualenv(self) -> None:
        """Does nothing: the interpreter is the right one, whatever VIRTUAL_ENV says."""

    def init_prompts(self) -> None:
        """Does nothing: with sys.ps1, libraries would assume an interactive terminal."""

    @property
    def db(self) -> dict[str, Any]:
        """IPython's persistent store, which %cd uses: in memory here."""
        return _store

    @db.setter
    def db(self, _value: Any) -> None:
        """IPython 8 assigns its own."""

    def init_hooks(self) -> None:
        super().init_hooks()
        self.set_hook("show_in_pager", _print_page, 0)

    def init_display_formatter(self) -> None:
        super().init_display_formatter()
        png = self.display_formatter.formatters["image/png"]
        png.for_type_by_name("matplotlib.figure", "Figure", figures.png_once)

    def init_magics(self) -> None:
        super().init_magics()
        for program in _SCRIPT_PROGRAMS:
            self.register_magic_function(_script_magic(self, program), "cell", program)
        self.configurables.append(InlineBackend(parent=self))

    def enable_matplotlib(self, gui: str | None = None) -> tuple[str, str]:
        """`%matplotlib` has no effect: figures are always shown as images."""
        return "inline", figures.BACKEND

    def enable_gui(self, gui: str | None = None) -> None:
        """Does nothing: there is no screen."""

    def showtraceback(self, exc_tuple: Any = None, *_: Any, **__: Any) -> None:
        """Errors that IPython catches itself, for example in a formatter."""
        error = exc_tuple[1] if exc_tuple else sys.exc_info()[1]
        if error is not None:
            print(tracebacks.render(error), file=sys.stderr, end="")

    showsyntaxerror = showtraceback

    def system(self, command: str) -> None:
        """`!command`: its output goes directly to our stdout and stderr."""
        command = self.var_expand(command, depth=1)
        sys.stdout.flush()
        sys.stderr.flush()
        self.user_ns["_exit_code"] = subprocess.call(command, shell=True, executable=_shell())
        # It may have been `pip install`: directories that were missing or empty may have modules now.
        importlib.invalidate_caches()

    system_raw = system_piped = system

    def getoutput(self, command: str, split: bool = True, depth: int = 0) -> Any:
        """`x = !command`: stdout and stderr together, as a terminal would show them."""
        command = self.var_expand(command, depth=depth + 1)
        sys.stdout.flush()
        done = subprocess.run(
            command, shell=True, executable=_shell(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.user_ns["_exit_code"] = done.returncode
        text = done.stdout.decode("utf-8", "replace")
        return SList(text.splitlines()) if split else LSString(text)


def _shell() -> str:
    return next((path for path in _SHELLS if os.path.exists(path)), _SHELLS[-1])


def _print_page(_shell: Shell, page: Any, **_: Any) -> None:
    """`name?`: the text of the help page, on stdout."""
    print(page.get("text/plain", "") if isinstance(page, dict) else page)


def _script_magic(shell: Shell, program: str) -> Callable[[str, str], None]:
    """`%%bash` and similar magics.

    IPython reads their output in an event loop, in a thread that never ends. A child process that writes to our pipes
    needs neither. IPython's implementation is used only for options that need it.
    """

    def run_script(line: str, cell: str) -> None:
        arguments = shlex.split(f"{program} {line}" if program != "script" else line)
        if any(argument.startswith(_IPYTHON_SCRIPT_OPTIONS) for argument in arguments):
            ScriptMagics(shell).shebang(" ".join(map(shlex.quote, arguments)), cell)
            return
        command = [argument for argument in arguments if argument != _NO_RAISE]
        sys.stdout.flush()
        sys.stderr.flush()
        done = subprocess.run(command, input=cell.encode("utf-8", "replace"))
        importlib.invalidate_caches()
        if done.returncode and _NO_RAISE not in arguments:
            raise subprocess.CalledProcessError(done.returncode, command)

    run_script.__doc__ = f"Runs the cell with {program}. Takes the options of IPython's %%script."
    return run_script
