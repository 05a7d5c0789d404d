"""A toolkit for agents that work with a shell, scripts, files and a browser. Needs `pip install belljar[langgraph]`.

>>> from belljar.toolkit import BelljarToolkit
>>> agent = create_agent("openai:gpt-5", tools=BelljarToolkit().get_tools())

All tools of a thread work in the same session: what `write_file` writes, `execute_shell` finds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from belljar.langgraph import SandboxFailure, SessionKeyFn  # first: it says what to install

# isort: split
from langchain_core.tools import BaseTool, BaseToolkit
from langgraph.prebuilt import ToolRuntime
from pydantic import ConfigDict, Field, PrivateAttr

from belljar._aio.session import AsyncSession
from belljar._file_calls import FileInfo, FileList
from belljar._sync.session import Session
from belljar.langgraph._model_access import Access, access
from belljar.langgraph._pictures import IMAGE_TYPES, MAX_IMAGE_BYTES, ashown_images, shown_images, with_pictures
from belljar.langgraph._render import MAX_CHARS, answer, clip, note, size_of
from belljar.langgraph._tool import NO_RUNTIME, Answer, Sessions, live, make_tool, origin
from belljar.langgraph.browser import BrowserModel, make_browser_tool, make_screenshot_tool
from belljar.manager import Opened, SessionManager

__all__ = ["BelljarToolkit", "BrowserModel", "SandboxFailure"]

# How much of a file is looked at, and how many entries of a directory are shown.
_MAX_READ = 4 << 20
_MAX_LINES = 2000
_MAX_ENTRIES = 500

_SHELL = """\
Runs a bash command in the sandbox of this conversation and returns what it prints, its errors and its exit code. It \
starts in /session, where all files are; a `cd` or a variable lasts only for the one command, so chain what belongs \
together with `&&`. A command may take {timeout:g} seconds; there is no network and no terminal, so use flags instead \
of prompts. Files saved in /session/artifacts are given to the user, and the answer lists them with links."""

_PYTHON = """\
Runs Python in the sandbox of this conversation. Variables and imports of earlier scripts are still there. Print what \
you want to see; the value of the last expression is shown too. Files are in /session, the working directory. To give \
the user a file or a picture, save it in /session/artifacts: the answer lists it with a link that you can pass on. \
numpy, pandas, matplotlib and scikit-learn are there; there is no network. A script may take {timeout:g} seconds."""

_LIST = """\
Lists a directory of the sandbox: name, kind and size of everything in it. Paths are relative to /session, or \
absolute."""

_READ = """\
Reads a text file of the sandbox. Long files come in parts: ask for more with `start_line`. Paths are relative to \
/session, or absolute."""

_WRITE = """\
Writes a text file in the sandbox: all of its content, over whatever file is there. Directories above it are made. \
Paths are relative to /session, or absolute."""

_DELETE = """\
Deletes a file of the sandbox, or a directory with everything in it when `recursive` is true. It cannot be undone. \
Paths are relative to /session, or absolute."""

_MKDIR = """\
Makes a directory in the sandbox, and those above it. One that is there already is no error. Paths are relative to \
/session, or absolute."""

PathArg = Annotated[str, Field(description="A path such as 'src/main.py' (in /session) or '/tmp/x'.")]


class BelljarToolkit(BaseToolkit):
    """The tools `execute_shell`, `execute_python_script`, `list_files`, `read_file`, `write_file`, `delete_file`,
    `make_directory`, `browser_tool` and `screenshot_browser`, over one session per thread.

    >>> toolkit = BelljarToolkit(session_manager=SessionManager(session_storage="BIND"), timeout_s=120)
    >>> [tool.name for tool in toolkit.get_tools()]

    `session_key_fn`, `images` and `max_output_chars` are those of `make_code_sandbox_tool`. `browser_model` does the
    tasks of `browser_tool`, if it is not the server's own; `browser=False` leaves both browser tools out.

    With nothing but `OPENAI_API_KEY` set, tasks are done by OpenAI's `gpt-5-mini`: sessions may reach its host, and the
    server adds the key. `network` is where code and pages may go besides: `"open"` for every public host, or hosts such
    as `["example.org"]`; `BELLJAR_NETWORK`, else nowhere, unless told. It is the `session_manager`'s own, if that has
    one.
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
    _access: Access = PrivateAttr()

    def model_post_init(self, context: Any, /) -> None:
        key_fn: SessionKeyFn | None = self.session_key_fn
        wants_model = self.browser and self.browser_model == BrowserModel()
        self._access = access(self.session_manager, self.network, wants_model=wants_model)
        self._sessions = Sessions(self.session_manager, key_fn)
        self._sessions.gave_up = self._access.gave_up

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
        ) -> Answer:
            def run(opened: Opened[Session]) -> Answer:
                result = opened.session.run_command(command, timeout=self.timeout_s, on_output=live(runtime))
                return answer(opened.result(result), [], self.max_output_chars)

            return self._sessions.call(runtime, run)

        async def aexecute_shell(
            command: Annotated[str, Field(description="The bash command, such as 'ls -la && wc -l *.csv'.")],
            runtime: ToolRuntime = NO_RUNTIME,
        ) -> Answer:
            async def run(opened: Opened[AsyncSession]) -> Answer:
                result = await opened.session.run_command(command, timeout=self.timeout_s, on_output=live(runtime))
                return answer(opened.result(result), [], self.max_output_chars)

            return await self._sessions.acall(runtime, run)

        description = _SHELL.format(timeout=self.timeout_s)
        return make_tool(execute_shell, aexecute_shell, name="execute_shell", description=description)

    def _execute_python_script(self) -> BaseTool:
        def execute_python_script(
            code: Annotated[str, Field(description="The Python code to run. It may have many lines.")],
            runtime: ToolRuntime = NO_RUNTIME,
        ) -> Answer:
            def run(opened: Opened[Session]) -> Answer:
                told = opened.session.run_code(code, timeout=self.timeout_s, on_output=live(runtime))
                result = opened.result(told)
                pictures = shown_images(self.session_manager.client, result) if self.images else []
                return answer(result, pictures, self.max_output_chars)

            return self._sessions.call(runtime, run)

        async def aexecute_python_script(
            code: Annotated[str, Field(description="The Python code to run. It may have many lines.")],
            runtime: ToolRuntime = NO_RUNTIME,
        ) -> Answer:
            async def run(opened: Opened[AsyncSession]) -> Answer:
                told = await opened.session.run_code(code, timeout=self.timeout_s, on_output=live(runtime))
                result = opened.result(told)
                pictures = await ashown_images(self.session_manager.async_client, result) if self.images else []
                return answer(result, pictures, self.max_output_chars)

            return await self._sessions.acall(runtime, run)

        description = _PYTHON.format(timeout=self.timeout_s)
        name = "execute_python_script"
        return make_tool(execute_python_script, aexecute_python_script, name=name, description=description)

    # Files.

    def _list_files(self) -> BaseTool:
        def list_files(
            path: Annotated[str, Field(description="The directory; /session itself, if left out.")] = ".",
            recursive: Annotated[bool, Field(description="Whether to list everything below it too.")] = False,
            runtime: ToolRuntime = NO_RUNTIME,
        ) -> Answer:
            def show(opened: Opened[Session]) -> Answer:
                return _listed(opened, path, opened.session.files.list(path, recursive=recursive))

            return self._sessions.call(runtime, show)

        async def alist_files(
            path: Annotated[str, Field(description="The directory; /session itself, if left out.")] = ".",
            recursive: Annotated[bool, Field(description="Whether to list everything below it too.")] = False,
            runtime: ToolRuntime = NO_RUNTIME,
        ) -> Answer:
            async def show(opened: Opened[AsyncSession]) -> Answer:
                return _listed(opened, path, await opened.session.files.list(path, recursive=recursive))

            return await self._sessions.acall(runtime, show)

        return make_tool(list_files, alist_files, name="list_files", description=_LIST)

    def _read_file(self) -> BaseTool:
        def read_file(
            path: PathArg,
            start_line: Annotated[int, Field(description="The first line to return, counted from 1.", ge=1)] = 1,
            max_lines: Annotated[int, Field(description="How many lines to return at most.", ge=1)] = _MAX_LINES,
            runtime: ToolRuntime = NO_RUNTIME,
        ) -> Answer:
            def read(opened: Opened[Session]) -> Answer:
                info = opened.session.files.stat(path)
                content = opened.session.files.read(path, end=_MAX_READ)
                return self._content(opened, info, content, start_line, max_lines)

            return self._sessions.call(runtime, read)

        async def aread_file(
            path: PathArg,
            start_line: Annotated[int, Field(description="The first line to return, counted from 1.", ge=1)] = 1,
            max_lines: Annotated[int, Field(description="How many lines to return at most.", ge=1)] = _MAX_LINES,
            runtime: ToolRuntime = NO_RUNTIME,
        ) -> Answer:
            async def read(opened: Opened[AsyncSession]) -> Answer:
                info = await opened.session.files.stat(path)
                content = await opened.session.files.read(path, end=_MAX_READ)
                return self._content(opened, info, content, start_line, max_lines)

            return await self._sessions.acall(runtime, read)

        return make_tool(read_file, aread_file, name="read_file", description=_READ)

    def _write_file(self) -> BaseTool:
        def write_file(
            path: PathArg,
            content: Annotated[str, Field(description="All that the file is to contain.")],
            runtime: ToolRuntime = NO_RUNTIME,
        ) -> Answer:
            def write(opened: Opened[Session]) -> Answer:
                return _done(opened, "Wrote", path, opened.session.files.write(path, content.encode()))

            return self._sessions.call(runtime, write)

        async def awrite_file(
            path: PathArg,
            content: Annotated[str, Field(description="All that the file is to contain.")],
            runtime: ToolRuntime = NO_RUNTIME,
        ) -> Answer:
            async def write(opened: Opened[AsyncSession]) -> Answer:
                return _done(opened, "Wrote", path, await opened.session.files.write(path, content.encode()))

            return await self._sessions.acall(runtime, write)

        return make_tool(write_file, awrite_file, name="write_file", description=_WRITE)

    def _delete_file(self) -> BaseTool:
        def delete_file(
            path: PathArg,
            recursive: Annotated[bool, Field(description="Whether to delete a directory that is not empty.")] = False,
            runtime: ToolRuntime = NO_RUNTIME,
        ) -> Answer:
            def delete(opened: Opened[Session]) -> Answer:
                opened.session.files.delete(path, recursive=recursive)
                return _done(opened, "Deleted", path, None)

            return self._sessions.call(runtime, delete)

        async def adelete_file(
            path: PathArg,
            recursive: Annotated[bool, Field(description="Whether to delete a directory that is not empty.")] = False,
            runtime: ToolRuntime = NO_RUNTIME,
        ) -> Answer:
            async def delete(opened: Opened[AsyncSession]) -> Answer:
                await opened.session.files.delete(path, recursive=recursive)
                return _done(opened, "Deleted", path, None)

            return await self._sessions.acall(runtime, delete)

        return make_tool(delete_file, adelete_file, name="delete_file", description=_DELETE)

    def _make_directory(self) -> BaseTool:
        def make_directory(path: PathArg, runtime: ToolRuntime = NO_RUNTIME) -> Answer:
            def make(opened: Opened[Session]) -> Answer:
                return _done(opened, "Made the directory", path, opened.session.files.mkdir(path))

            return self._sessions.call(runtime, make)

        async def amake_directory(path: PathArg, runtime: ToolRuntime = NO_RUNTIME) -> Answer:
            async def make(opened: Opened[AsyncSession]) -> Answer:
                return _done(opened, "Made the directory", path, await opened.session.files.mkdir(path))

            return await self._sessions.acall(runtime, make)

        return make_tool(make_directory, amake_directory, name="make_directory", description=_MKDIR)

    def _content(
        self, opened: Opened[Any], info: FileInfo, content: bytes, start_line: int, max_lines: int
    ) -> Answer:
        artifact = {"status": "ok", "file": info.model_dump(mode="json"), **origin(opened)}
        said = [note(opened.notice)] if opened.notice else []
        if _is_binary(content):
            mime = _picture_type(content)
            if self.images and mime is not None and info.size <= MAX_IMAGE_BYTES:
                text = "\n".join([*said, f"{info.path} is a picture of {size_of(info.size)}."])
                return with_pictures(text, [(mime, content)]), artifact
            kind = f"{mime or 'binary'}, {size_of(info.size)}"
            said.append(f"{info.path} is not a text file ({kind}); use code to read it.")
            return "\n".join(said), artifact
        lines = content.decode("utf-8", "replace").splitlines()
        part = lines[start_line - 1 : start_line - 1 + max_lines]
        said.append(clip("\n".join(part), self.max_output_chars) if part else "(There is nothing in this part.)")
        last = start_line - 1 + len(part)
        if last < len(lines) or start_line > 1:
            said.append(f"[lines {start_line} to {last} of {len(lines)}]")
        if info.size > len(content):
            shown, whole = size_of(len(content)), size_of(info.size)
            said.append(f"[only the first {shown} of {whole} can be read like this; use execute_shell for the rest]")
        return "\n".join(said), artifact


def _listed(opened: Opened[Any], path: str, listing: FileList) -> Answer:
    lines = [_entry(file) for file in listing.files[:_MAX_ENTRIES]]
    more = listing.more + max(0, len(listing.files) - _MAX_ENTRIES)
    if more:
        lines.append(f"... and at least {more} more")
    said = [note(opened.notice)] if opened.notice else []
    text = "\n".join([*said, *(lines or [f"{path} is empty."])])
    return text, {"status": "ok", **listing.model_dump(mode="json"), **origin(opened)}


def _entry(file: FileInfo) -> str:
    if file.is_directory:
        return f"{file.path}/"
    return f"{file.path} ({size_of(file.size)})" if file.is_file else f"{file.path} ({file.kind})"


def _done(opened: Opened[Any], what: str, path: str, info: FileInfo | None) -> Answer:
    size = f" ({size_of(info.size)})" if info is not None and info.is_file else ""
    told = {"status": "ok", "file": None if info is None else info.model_dump(mode="json"), **origin(opened)}
    said = [note(opened.notice)] if opened.notice else []
    return "\n".join([*said, f"{what} {path}{size}."]), told


def _is_binary(content: bytes) -> bool:
    if b"\0" in content[:8192]:
        return True
    try:
        content[:8192].decode()
    except UnicodeDecodeError as error:
        # A character that the cut went through is none of the file's faults.
        return error.start < len(content[:8192]) - 4
    return False


def _picture_type(content: bytes) -> str | None:
    begins = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
    found = next((mime for magic, mime in begins.items() if content.startswith(magic)), None)
    if found is None and content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        found = "image/webp"
    return found if found in IMAGE_TYPES else None
