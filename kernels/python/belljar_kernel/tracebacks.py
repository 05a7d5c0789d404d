"""Formats exceptions in the standard format, without the kernel's own frames."""

from __future__ import annotations

import os
import sys
import traceback

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from typing import Any

MAX_TRACEBACK_CHARS = 256 << 10
MAX_MESSAGE_CHARS = 16 << 10

# Packages whose modules have another name.
_PACKAGES = {
    "sklearn": "scikit-learn", "PIL": "pillow", "IPython": "ipython", "cv2": "opencv-python-headless",
    "bs4": "beautifulsoup4", "yaml": "pyyaml", "dotenv": "python-dotenv", "dateutil": "python-dateutil",
    "skimage": "scikit-image", "fitz": "pymupdf", "docx": "python-docx", "pptx": "python-pptx",
    "Crypto": "pycryptodome", "serial": "pyserial", "OpenSSL": "pyopenssl", "jwt": "pyjwt", "git": "gitpython",
}  # fmt: skip

_OUR_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_IPYTHON_FOLDER = f"{os.sep}IPython{os.sep}"


def describe(error: BaseException) -> dict[str, Any]:
    """The body of an `error` message. Runs user code, such as `__str__` of the exception."""
    return {"name": type(error).__name__, "value": _message(error), "traceback": render(error)}


def fallback(error: BaseException, reason: BaseException) -> dict[str, Any]:
    """The body for an exception that cannot be formatted."""
    name = type(error).__name__
    note = f"<the exception could not be formatted: {type(reason).__name__}>"
    return {"name": name, "value": note, "traceback": f"{name}: {note}\n"}


def render(error: BaseException) -> str:
    """The traceback as Python would print it for a script."""
    if isinstance(error, SyntaxError) and not has_user_frame(error):
        # A cell with a syntax error was not run: Python shows such errors without a stack.
        error = error.with_traceback(None)
    summary = traceback.TracebackException.from_exception(error, compact=True)
    _strip(summary, set())
    text = "".join(summary.format()) + _advice(error)
    if len(text) > MAX_TRACEBACK_CHARS:
        half = MAX_TRACEBACK_CHARS // 2
        dropped = len(text) - 2 * half
        text = f"{text[:half]}\n... {dropped} characters of this traceback left out ...\n{text[-half:]}"
    return text


def _advice(error: BaseException) -> str:
    """How to install a missing package."""
    name = error.name if isinstance(error, ModuleNotFoundError) else None
    top = name.partition(".")[0] if type(name) is str else ""
    # Not for a missing module of an installed package, or of Python itself.
    if not top.isidentifier() or top in sys.modules or top.startswith("_") or top in sys.stdlib_module_names:
        return ""
    package = _PACKAGES.get(top, top)
    way = f"If it is a package, `%pip install {package}` installs it for this session"
    if not (os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy")):
        way += ", if the session has a network policy that allows the package index: this session has no network"
    everywhere = f"`belljar setup --with {package}` on the server's machine installs it for all sessions"
    return f"{top} is not installed. {way}; {everywhere}.\n"


def has_user_frame(error: BaseException) -> bool:
    """Whether the stack has frames of the user or of a library."""
    frame = error.__traceback__
    while frame is not None:
        if not _is_ours(frame.tb_frame.f_code.co_filename):
            return True
        frame = frame.tb_next
    return False


def _message(error: BaseException) -> str:
    text = str(error)
    if len(text) > MAX_MESSAGE_CHARS:
        text = f"{text[:MAX_MESSAGE_CHARS]}... ({len(text)} characters)"
    return text


def _strip(summary: traceback.TracebackException | None, seen: set[Any]) -> None:
    """Removes our frames from an exception, from its causes, and from the exceptions of a group."""
    pending = [summary]
    while pending:
        summary = pending.pop()
        if summary is None or id(summary) in seen:
            continue
        seen.add(id(summary))
        if summary.stack:
            summary.stack[:] = [frame for frame in summary.stack if not _is_ours(frame.filename)]
        pending += [summary.__cause__, summary.__context__, *(getattr(summary, "exceptions", None) or ())]


def _is_ours(filename: str) -> bool:
    """True for files of the kernel and of IPython, which is between a cell and the code of a magic."""
    return filename.startswith((_OUR_FOLDER, "<decorator-gen-")) or _IPYTHON_FOLDER in filename
