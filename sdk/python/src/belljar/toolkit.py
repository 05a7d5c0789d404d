"""A toolkit for agents that use a shell, Python, files and a browser. Needs `pip install belljar[langgraph]`.

>>> from belljar.toolkit import BelljarToolkit
>>> agent = create_agent("openai:gpt-5", tools=BelljarToolkit().get_tools())

All tools of a thread work in the same session: `execute_shell` finds what `write_file` has written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from belljar.langgraph import SandboxFailure, SessionKeyFn  # first: its error says what to install

# isort: split
from langchain_core.tools import BaseTool, BaseToolkit
from langgraph.prebuilt import ToolRuntime
from pydantic import ConfigDict, Field, PrivateAttr

from belljar.langgraph._aio import actions as aio
from belljar.langgraph._browser_access import BrowserAccess, browser_access
from belljar.langgraph._make_tool import Work, make_tool, work_in_session
from belljar.langgraph._render import MAX_CHARS
from belljar.langgraph._sync import actions as sync
from belljar.langgraph._tool import NO_RUNTIME, Sessions, live
from belljar.langgraph.browser import BrowserModel, make_browser_tool, make_screenshot_tool
from belljar.manager import SessionManager

__all__ = ["BelljarToolkit", "BrowserModel", "SandboxFailure"]

# How many lines of a file `read_file` returns by default.
_MAX_LINES = 2000

_SHELL = """\
Runs a bash command in the sandbox of this conversation and returns its output, its errors and its exit code. It \
starts in /session, where all files are. A `cd` or a variable lasts for one command only: combine commands with `&&`. \
A command may take {timeout:g} seconds. There is no network and no terminal: use flags instead of prompts. Files saved \
in /session/artifacts are given to the user, and the answer lists them with links."""

_PYTHON = """\
Runs Python in the sandbox of this conversation. Variables and imports of earlier scripts are still there. Print what \
you want to see; the value of the last expression is shown too. Files are in /session, the working directory. To give \
the user a file or an image, save it in /session/artifacts: the answer lists it with a link that you can pass on. \
numpy, pandas, matplotlib and scikit-learn are there; there is no network. A script may take {timeout:g} seconds."""

_LIST = """\
Lists a directory of the sandbox, with the kind and size of each entry. Paths are relative to /session, or \
absolute."""

_READ = """\
Reads a text file of the sandbox. A long file is returned in parts: `start_line` selects the part. Paths are relative \
to /session, or absolute."""

_WRITE = """\
Writes a text file in the sandbox, and replaces a file that exists. Missing parent directories are created. \
Paths are relative to /session, or absolute."""

_DELETE = """\
Deletes a file of the sandbox, or a directory with everything in it when `recursive` is true. This cannot be undone. \
Paths are relative to /session, or absolute."""

_MKDIR = """\
Creates a directory in the sandbox, with missing parents. An existing directory is no error. Paths are relative to \
/session, or absolute."""

PathArg = Annotated[str, Field(description="A path such as 'src/main.py' (in /session) or '/tmp/x'.")]


class BelljarToolkit(BaseToolkit):
    """The tools `execute_shell`, `execute_python_script`, `list_files`, `read_file`, `write_file`, `delete_file`,
    `make_directory`, `browser_tool` and `screenshot_browser`, over one session per thread.

    >>> toolkit = BelljarToolkit(session_manager=SessionManager(session_storage="BIND"), timeout_s=120)
    >>> [tool.name for tool in toolkit.get_tools()]

    `session_key_fn`, `images` and `max_output_chars` are those of `make_code_sandbox_tool`. `browser_model` does the
    tasks of `browser_tool`, instead of the server's default model; `browser=False` leaves both browser tools out.

    If only `OPENAI_API_KEY` is set, OpenAI's `gpt-5-mini` does the tasks: sessions may reach its host, and the server
    adds the key. `network` is what code and pages may reach in addition: `"open"` for every public host, or hosts such
    as `["example.org"]`; by default `BELLJAR_NETWORK`, else nothing. If the `session_manager` has a network policy of
    its own, that is used instead.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    session_manager: SessionManager = Field(default_factory=SessionManager)
    session_key_fn: Callable[..., str] | None = None
    timeout_s: float = 60.0
    images: bool = False
    max_output_chars: int = MAX_CHARS
    browser: bool = True
    browser_model: BrowserModel = Field(default_factory=BrowserModel)
    browser_timeout_s: float = 600.0
    network: Any = None

    _sessions: Sessions = PrivateAttr()
    _access: BrowserAccess = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        key_fn: SessionKeyFn | None = self.session_key_fn
        wants_model = self.browser and self.browser_model == BrowserModel()
        self._access = browser_access(self.session_manager, self.network, wants_model=wants_model)
        self._sessions = Sessions(self.session_manager, key_fn)
        self._sessions.reduce_options = self._access.without_model_after

    def get_tools(self) -> list[BaseTool]:
        return [
            self._execute_shell(),
            self._execute_python_script(),
            self._list_files(),
            self._read_file(),
            self._write_file(),
            self._delete_file(),
            self._make_directory(),
            *(self._browser_tools() if self.browser else []),
        ]

    def _browser_tools(self) -> list[BaseTool]:
        task = make_browser_tool(
            self._sessions,
            self.browser_model,
            timeout_s=self.browser_timeout_s,
            max_chars=self.max_output_chars,
            access=self._access,
        )
        return [task, make_screenshot_tool(self._sessions, images=self.images, access=self._access)]

    # Execution.

    def _execute_shell(self) -> BaseTool:
        def execute_shell(
            command: Annotated[str, Field(description="The bash command, such as 'ls -la && wc -l *.csv'.")],
            runtime: ToolRuntime = NO_RUNTIME,
        ) -> Work:
            return work_in_session(
                self._sessions,
                runtime,
                sync.run_command,
                aio.run_command,
                command,
                timeout=self.timeout_s,
                on_output=live(runtime),
                max_chars=self.max_output_chars,
            )

        return make_tool(execute_shell, name="execute_shell", description=_SHELL.format(timeout=self.timeout_s))

    def _execute_python_script(self) -> BaseTool:
        def execute_python_script(
            code: Annotated[str, Field(description="The Python code to run. It may have many lines.")],
            runtime: ToolRuntime = NO_RUNTIME,
        ) -> Work:
            return work_in_session(
                self._sessions,
                runtime,
                sync.run_code,
                aio.run_code,
                code,
                timeout=self.timeout_s,
                on_output=live(runtime),
                images=self.images,
                max_chars=self.max_output_chars,
            )

        description = _PYTHON.format(timeout=self.timeout_s)
        return make_tool(execute_python_script, name="execute_python_script", description=description)

    # Files.

    def _list_files(self) -> BaseTool:
        def list_files(
            path: Annotated[str, Field(description="The directory; /session itself, if left out.")] = ".",
            recursive: Annotated[bool, Field(description="Whether to list everything below it too.")] = False,
            runtime: ToolRuntime = NO_RUNTIME,
        ) -> Work:
            return work_in_session(
                self._sessions, runtime, sync.list_files, aio.list_files, path, recursive=recursive
            )

        return make_tool(list_files, name="list_files", description=_LIST)

    def _read_file(self) -> BaseTool:
        def read_file(
            path: PathArg,
            start_line: Annotated[int, Field(description="The first line to return, counted from 1.", ge=1)] = 1,
            max_lines: Annotated[int, Field(description="How many lines to return at most.", ge=1)] = _MAX_LINES,
            runtime: ToolRuntime = NO_RUNTIME,
        ) -> Work:
            return work_in_session(
                self._sessions,
                runtime,
                sync.read_file,
                aio.read_file,
                path,
                start_line=start_line,
                max_lines=max_lines,
                images=self.images,
                max_chars=self.max_output_chars,
            )

        return make_tool(read_file, name="read_file", description=_READ)

    def _write_file(self) -> BaseTool:
        def write_file(
            path: PathArg,
            content: Annotated[str, Field(description="The whole content of the file.")],
            runtime: ToolRuntime = NO_RUNTIME,
        ) -> Work:
            return work_in_session(self._sessions, runtime, sync.write_file, aio.write_file, path, content)

        return make_tool(write_file, name="write_file", description=_WRITE)

    def _delete_file(self) -> BaseTool:
        def delete_file(
            path: PathArg,
            recursive: Annotated[bool, Field(description="Whether to delete a directory that is not empty.")] = False,
            runtime: ToolRuntime = NO_RUNTIME,
        ) -> Work:
            return work_in_session(
                self._sessions, runtime, sync.delete_file, aio.delete_file, path, recursive=recursive
            )

        return make_tool(delete_file, name="delete_file", description=_DELETE)

    def _make_directory(self) -> BaseTool:
        def make_directory(path: PathArg, runtime: ToolRuntime = NO_RUNTIME) -> Work:
            return work_in_session(self._sessions, runtime, sync.make_directory, aio.make_directory, path)

        return make_tool(make_directory, name="make_directory", description=_MKDIR)
