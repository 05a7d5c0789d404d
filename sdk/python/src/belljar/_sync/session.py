# Generated from ../_aio/session.py by scripts/generate_sync.py; change that file.
"""A session: a sandbox that keeps its state between calls."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from typing_extensions import Unpack

from belljar import _calls
from belljar._sync import _io
from belljar._sync.artifacts import Artifacts
from belljar._sync.browser import Browser
from belljar._sync.datasets import Datasets
from belljar._sync.files import Files
from belljar._sync.stream import Stream
from belljar._calls import Call
from belljar._options import ExecOptions, Language
from belljar.errors import InvalidRequest, NotFound, Timeout
from belljar.events import Output
from belljar.models import Checkpoint, ExecInfo, KernelVariables, LogEntry, Result, SessionInfo

if TYPE_CHECKING:
    from belljar._sync.client import Client

# The largest page of a list that the server returns.
_PAGE = 1000


class Session:
    """A sandbox with kernels that keep their state. `client.session()` creates it.

    >>> with client.session() as session:
    ...     session.run_code("import pandas as pd; df = pd.DataFrame({'x': [1, 2]})")
    ...     print((session.run_code("df.x.sum()")).text)
    ...     print((session.run_command("ls /session")).stdout)

    A session can be shared by threads and tasks. A kernel executes one piece of code after another; commands run in
    parallel.
    """

    def __init__(self, client: Client, info: SessionInfo, *, stop_on_exit: bool = False) -> None:
        self._client = client
        self._info = info
        self._stop_on_exit = stop_on_exit

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def key(self) -> str | None:
        return self._info.key

    @property
    def info(self) -> SessionInfo:
        """The session as the server last described it; `refresh()` asks again."""
        return self._info

    def __repr__(self) -> str:
        key = f", key={self.key!r}" if self.key is not None else ""
        return f"<{type(self).__name__} {self.id}{key}, {self._info.state}>"

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if not self._stop_on_exit:
            return
        if error is None:
            self.stop()
            return
        # The caller gets the error from inside the block, not one from cleaning up.
        with _io.cleanup():
            self._client._do(_calls.for_cleanup(_calls.stop(self.id)), patience=0)

    # Execution.

    @overload
    def run_code(
        self,
        code: str,
        *,
        language: Language = ...,
        background: Literal[False] = ...,
        on_output: _io.Callback[Output] | None = ...,
        **options: Unpack[ExecOptions],
    ) -> Result: ...

    @overload
    def run_code(
        self,
        code: str,
        *,
        language: Language = ...,
        background: Literal[True],
        **options: Unpack[ExecOptions],
    ) -> ExecInfo: ...

    def run_code(
        self,
        code: str,
        *,
        language: Language = "python",
        background: bool = False,
        on_output: _io.Callback[Output] | None = None,
        **options: Unpack[ExecOptions],
    ) -> Result | ExecInfo:
        """Runs code in the session's kernel, which keeps variables from call to call.

        >>> result = session.run_code("print('hi'); 6 * 7")
        >>> result.text, result.stdout
        ('42', 'hi\\n')

        Code that fails, or that runs longer than `timeout` seconds, raises no exception: see `Result.status`.
        `on_output` is called with each `Stdout` and `Stderr` while the code runs. With `background=True` the code runs
        in a process of its own and this method returns at once; see `join`. If the caller is cancelled while it waits,
        the code is interrupted. The other options are those of `ExecOptions`.
        """
        call = _calls.execute(self.id, options, code=code, language=language, background=background)
        return self._execute(call, background, on_output)

    @overload
    def run_command(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = ...,
        background: Literal[False] = ...,
        on_output: _io.Callback[Output] | None = ...,
        **options: Unpack[ExecOptions],
    ) -> Result: ...

    @overload
    def run_command(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = ...,
        background: Literal[True],
        **options: Unpack[ExecOptions],
    ) -> ExecInfo: ...

    def run_command(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        background: bool = False,
        on_output: _io.Callback[Output] | None = None,
        **options: Unpack[ExecOptions],
    ) -> Result | ExecInfo:
        """Runs one command in a process of its own: text for a shell, or a list of arguments.

        >>> (session.run_command(["wc", "-l", "data.csv"], cwd="/session")).stdout

        For a shell that keeps its directory and variables, use `run_code(..., language="bash")`. Everything else is as
        with `run_code`.
        """
        call = _calls.execute(self.id, options, command=command, cwd=cwd, background=background)
        return self._execute(call, background, on_output)

    def _execute(
        self, call: Call[Result], background: bool, on_output: _io.Callback[Output] | None
    ) -> Result | ExecInfo:
        if background:
            begun = self._client._do(_calls.in_background(call))
            return begun or self.get_exec(_exec_id(call))
        exec_id = _exec_id(call)
        try:
            if on_output is None:
                try:
                    return self._client._do(call, unless=(Timeout,))
                except Timeout:
                    # It runs long, or waits for the kernel: follow the same execution as a stream.
                    pass
            with self._follow(call) as stream:
                return stream.result(on_output)
        except BaseException as error:
            if _io.is_cancellation(error):
                with _io.cleanup():
                    self._client._do(_calls.for_cleanup(_calls.interrupt(self.id, exec_id)), patience=0)
            raise

    def stream(
        self,
        code: str | None = None,
        *,
        command: str | Sequence[str] | None = None,
        language: Language | None = None,
        cwd: str | None = None,
        stdin: bool = False,
        **options: Unpack[ExecOptions],
    ) -> Stream:
        """Runs code, or a `command`, and returns its events while they happen.

        >>> with session.stream("name = input('Who? ')", stdin=True) as stream:
        ...     for event in stream:
        ...         if isinstance(event, InputRequest):
        ...             stream.send("Ada\\n")

        The execution begins when the first event is requested, or with `stream.accepted()`. If the connection is lost
        or the server restarts, the stream reconnects and continues where it was.
        """
        if (code is None) == (command is None):
            raise InvalidRequest("give either `code` or `command`")
        call = _calls.execute(self.id, options, code=code, command=command, language=language, cwd=cwd, stdin=stdin)
        return self._follow(call)

    def _follow(self, call: Call[Result]) -> Stream:
        return Stream(self._client, request=call, session_id=self.id, exec_id=_exec_id(call))

    def join(self, exec_id: str, offset: int = 0) -> Stream:
        """Follows an execution that was started before, from any position.

        >>> started = session.run_code("...", background=True)
        >>> result = session.join(started.exec_id).result()
        """
        return Stream(self._client, session_id=self.id, exec_id=exec_id, offset=offset)

    def execs(self, limit: int | None = 100) -> list[ExecInfo]:
        """Lists executions, the newest first; `limit=None` lists all of them."""
        found: list[ExecInfo] = []
        before = None
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(found))
            page = self._client._do(_calls.execs(self.id, limit=size, before=before))
            found += page.items
            before = page.next
            if before is None:
                break
        return found

    def get_exec(self, exec_id: str) -> ExecInfo:
        """One execution, running or ended."""
        return self._client._do(_calls.get_exec(self.id, exec_id))

    def interrupt(self, exec_id: str | None = None) -> int:
        """Interrupts one execution, or all, as Ctrl-C would; returns how many were interrupted."""
        return self._client._do(_calls.interrupt(self.id, exec_id))

    def stdin(self, exec_id: str, data: str = "", *, close: bool = False) -> None:
        """Sends input to an execution that was started with `stdin=True`. A line ends with a newline."""
        self._client._do(_calls.stdin(self.id, exec_id, data, close))

    # Contents.

    def state(self, language: Language = "python") -> KernelVariables:
        """The variables of a kernel: name, type, size, shape, preview.

        >>> (session.state())["df"].shape
        [2, 1]
        """
        return self._client._do(_calls.state(self.id, language))

    def log(self, limit: int = 100, after: int | None = None) -> list[LogEntry]:
        """The log of executions, with code and output, the oldest first: the last `limit` entries, or those `after` the
        execution with this number."""
        return (self._client._do(_calls.log(self.id, limit=limit, after=after))).items

    @property
    def artifacts(self) -> Artifacts:
        """The artifacts of this session: files that code saved in `/session/artifacts`."""
        return Artifacts(self._client, self.id)

    @property
    def datasets(self) -> Datasets:
        """The datasets of this session."""
        return Datasets(self._client, self.id)

    @property
    def files(self) -> Files:
        """The files in the sandbox, as a program inside sees them."""
        return Files(self._client, self.id)

    @property
    def browser(self) -> Browser:
        """The session's browser: Chromium in the sandbox, started when it is first used."""
        return Browser(self._client, self.id)

    # Life cycle.

    def refresh(self) -> SessionInfo:
        """Asks the server for the current state of the session."""
        return self._keep(self._client._do(_calls.show(self.id)))

    def extend(self, ttl: int) -> SessionInfo:
        """Makes the session live for at least `ttl` seconds from now."""
        return self._keep(self._client._do(_calls.extend(self.id, ttl)))

    def stop(self) -> SessionInfo:
        """Ends the session and everything that runs in it. Stopping it twice is no error."""
        return self._keep(self._client._do(_calls.stop(self.id)))

    def remove(self) -> None:
        """Removes the session with its files, snapshots, executions and log, alive or ended. A live session is stopped
        first. Its artifacts are kept. This cannot be undone; a second call raises `NotFound`."""
        self._client._do(_calls.remove(self.id))

    def start(self) -> SessionInfo:
        """Starts an ended session with storage `BIND` again: with its files, without its variables."""
        return self._keep(self._client._do(_calls.start(self.id)))

    def hibernate(self, *, force: bool = False) -> SessionInfo:
        """Writes the session to disk, so that it uses neither memory nor processor. The next call that uses the session
        wakes it, with its variables and files. Reading results, logs and artifacts does not wake it.

        Threads, connections, processes and kernels other than Python cannot be saved. If there are any, this raises
        `Conflict`; with `force` they are lost, and `lost` of the returned value lists them. The next execution that
        uses something lost reports it. Variables that can be saved are never lost.
        """
        return self._keep(self._client._do(_calls.hibernate(self.id, force)))

    def fork(self, count: int = 1, *, exec_id: str | None = None, force: bool = False) -> list[Session]:
        """Creates `count` independent copies of this session, with its variables and files. Either all are created or
        none.

        >>> first, second = session.fork(2)

        With `exec_id` the copies have the state after that execution; see `checkpoints`. With `force`, what cannot be
        copied is left out, and `info.lost` of each copy lists it. Stop the copies yourself when you are done.
        """
        forked = self._client._do(_calls.fork(self.id, count=count, force=force, exec_id=exec_id))
        return [type(self)(self._client, info) for info in forked]

    def checkpoints(self) -> list[Checkpoint]:
        """The checkpoints of a session that was created with `checkpoints=True`, the oldest first."""
        return self._client._do(_calls.checkpoints(self.id))

    def restore(self, exec_id: str) -> SessionInfo:
        """Sets variables and files back to what they were after an execution. Later checkpoints are kept.

        >>> first = session.run_code("x = 1")
        >>> session.run_code("x = 2")
        >>> session.restore(first.exec_id)
        >>> (session.run_code("x")).text
        '1'
        """
        return self._keep(self._client._do(_calls.restore(self.id, exec_id)))

    def is_alive(self) -> bool:
        """Whether the server knows the session and it is alive."""
        try:
            return (self.refresh()).is_alive
        except NotFound:
            return False

    def _keep(self, info: SessionInfo) -> SessionInfo:
        self._info = info
        return info


def _exec_id(call: Call[Any]) -> str:
    return str((call.body or {})["exec_id"])
