"""Sealed computers for AI agents, on your own machine.

>>> import belljar
>>> belljar.run("1 + 1").text
'2'

>>> with belljar.Client() as client, client.session("thread-7") as session:
...     session.run_code("x = 41")
...     print(session.run_code("x + 1").text)
42

`AsyncClient` is the same with `await`. Without an address (`BELLJAR_URL`) a local server is started, which all programs
of the user share; see `belljar.local`.
"""

from __future__ import annotations

from belljar._version import __version__

# Type checkers treat this name as true; importing it from `typing` would take longer than all the rest here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from belljar import errors, events, kernellite, local, models
    from belljar import langgraph as langgraph
    from belljar import toolkit as toolkit
    from belljar._aio.client import AsyncClient
    from belljar._aio.session import AsyncSession
    from belljar._aio.stream import AsyncStream
    from belljar._aio.watch import AsyncWatch
    from belljar._browser_calls import BrowserState, BrowserTab, Download, Screenshot, TaskResult
    from belljar._file_calls import FileChange, FileInfo, FileList, Unpacked
    from belljar._options import ExecOptions, LimitOptions, RunOptions, SessionOptions
    from belljar._run import arun, run
    from belljar._sync.client import Client
    from belljar._sync.session import Session
    from belljar._sync.stream import Stream
    from belljar._sync.watch import Watch
    from belljar.compat.simple_sandbox import SandboxClient
    from belljar.config import Config
    from belljar.errors import (
        BelljarError,
        BrowserError,
        Conflict,
        ExecutionError,
        Forbidden,
        IntegrityError,
        InvalidRequest,
        LocalServerError,
        NoSpace,
        NotFound,
        ProtocolError,
        Refused,
        ServerError,
        ServerUnavailable,
        SessionEnded,
        SourceFailed,
        Timeout,
        TooLarge,
        TooMany,
        Unauthorized,
    )
    from belljar.events import (
        ArtifactsEvent,
        Display,
        Done,
        ErrorEvent,
        Event,
        InputRequest,
        ResultEvent,
        Stderr,
        Stdout,
    )
    from belljar.langgraph import SandboxFailure as SandboxFailure
    from belljar.langgraph import make_code_sandbox_tool as make_code_sandbox_tool
    from belljar.langgraph import make_export_datasets_tool as make_export_datasets_tool
    from belljar.langgraph import make_list_datasets_tool as make_list_datasets_tool
    from belljar.langgraph import make_select_dataset_tool as make_select_dataset_tool
    from belljar.manager import ExecResult, ManagerConfig, SessionManager
    from belljar.models import Artifact, Bundle, Checkpoint, Dataset, ExecInfo, Result, SessionInfo, Volume
    from belljar.toolkit import BelljarToolkit as BelljarToolkit

# The module of each name. A module is loaded when one of its names is first used, so that `import belljar` is fast and
# does not load httpx and pydantic.
_MODULES = {
    "belljar.errors": (
        "BelljarError", "BrowserError", "Conflict", "ExecutionError", "Forbidden", "IntegrityError", "InvalidRequest",
        "LocalServerError", "NoSpace", "NotFound", "ProtocolError", "Refused", "ServerError", "ServerUnavailable",
        "SessionEnded", "SourceFailed", "Timeout", "TooLarge", "TooMany", "Unauthorized",
    ),
    "belljar.events": (
        "ArtifactsEvent", "Display", "Done", "ErrorEvent", "Event", "InputRequest", "ResultEvent", "Stderr", "Stdout",
    ),
    "belljar.models": ("Artifact", "Bundle", "Checkpoint", "Dataset", "ExecInfo", "Result", "SessionInfo", "Volume"),
    "belljar._options": ("ExecOptions", "LimitOptions", "RunOptions", "SessionOptions"),
    "belljar._browser_calls": ("BrowserState", "BrowserTab", "Download", "Screenshot", "TaskResult"),
    "belljar._file_calls": ("FileChange", "FileInfo", "FileList", "Unpacked"),
    "belljar._run": ("arun", "run"),
    "belljar._aio.client": ("AsyncClient",),
    "belljar._aio.session": ("AsyncSession",),
    "belljar._aio.stream": ("AsyncStream",),
    "belljar._aio.watch": ("AsyncWatch",),
    "belljar._sync.client": ("Client",),
    "belljar._sync.session": ("Session",),
    "belljar._sync.stream": ("Stream",),
    "belljar._sync.watch": ("Watch",),
    "belljar.compat.simple_sandbox": ("SandboxClient",),
    "belljar.config": ("Config",),
    "belljar.manager": ("ExecResult", "ManagerConfig", "SessionManager"),
    # These need langchain and langgraph, which are optional.
    "belljar.langgraph": (
        "SandboxFailure", "make_code_sandbox_tool", "make_export_datasets_tool", "make_list_datasets_tool",
        "make_select_dataset_tool",
    ),
    "belljar.toolkit": ("BelljarToolkit",),
}  # fmt: skip
_WHERE = {name: module for module, names in _MODULES.items() for name in names}
_SUBMODULES = ("errors", "events", "kernellite", "langgraph", "local", "models", "toolkit")


if not TYPE_CHECKING:  # type checkers would accept every name

    def __getattr__(name: str) -> object:
        from importlib import import_module

        if name in _SUBMODULES:
            return import_module(f"belljar.{name}")
        if name not in _WHERE:
            raise AttributeError(f"module 'belljar' has no attribute {name!r}")
        value = getattr(import_module(_WHERE[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_WHERE, *_SUBMODULES})


# Without the names that need langchain, so that `from belljar import *` works without it.
__all__ = [
    "Artifact",
    "ArtifactsEvent",
    "AsyncClient",
    "AsyncSession",
    "AsyncStream",
    "AsyncWatch",
    "BelljarError",
    "BrowserError",
    "BrowserState",
    "BrowserTab",
    "Bundle",
    "Checkpoint",
    "Client",
    "Config",
    "Conflict",
    "Dataset",
    "Display",
    "Done",
    "Download",
    "ErrorEvent",
    "Event",
    "ExecInfo",
    "ExecOptions",
    "ExecResult",
    "ExecutionError",
    "FileChange",
    "FileInfo",
    "FileList",
    "Forbidden",
    "InputRequest",
    "IntegrityError",
    "InvalidRequest",
    "LimitOptions",
    "LocalServerError",
    "ManagerConfig",
    "NoSpace",
    "NotFound",
    "ProtocolError",
    "Refused",
    "Result",
    "ResultEvent",
    "RunOptions",
    "SandboxClient",
    "Screenshot",
    "ServerError",
    "ServerUnavailable",
    "Session",
    "SessionEnded",
    "SessionInfo",
    "SessionManager",
    "SessionOptions",
    "SourceFailed",
    "Stderr",
    "Stdout",
    "Stream",
    "TaskResult",
    "Timeout",
    "TooLarge",
    "TooMany",
    "Unauthorized",
    "Unpacked",
    "Volume",
    "Watch",
    "__version__",
    "arun",
    "errors",
    "events",
    "kernellite",
    "local",
    "models",
    "run",
]
