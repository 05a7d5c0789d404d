# Made of ../_aio/session.py by scripts/generate_sync.py; change that one.
"""A session: a sandbox that remembers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, overload

from belljar import _calls
from belljar._sync import _io
from belljar._sync.artifacts import Artifacts
from belljar._sync.browser import Browser
from belljar._sync.datasets import Datasets
from belljar._sync.files import Files
from belljar._sync.stream import Stream
from belljar._calls import Call, Language, Size
from belljar.errors import InvalidRequest, NotFound, Timeout
from belljar.events import Output
from belljar.models import Checkpoint, ExecInfo, KernelVariables, LogEntry, Result, SessionInfo

if TYPE_CHECKING:
    from belljar._sync.client import Client

# The largest page of a list that the server gives.
_PAGE = 1000


class Session:
    """A sandbox of its own, with kernels that remember. Made by `client.session()`.

    >>> with client.session() as session:
    ...     session.run_code("import pandas as pd; df = pd.DataFrame({'x': [1, 2]})")
    ...     print((session.run_code("df.x.sum()")).text)
    ...     print((session.run_command("ls /session")).stdout)

    A session is safe to share. Code for the same kernel waits its turn; commands run beside it.
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
        """What the server said of it last; `refresh()` asks again."""
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
        # What went wrong inside matters more than whether we could clean up after it.
        with _io.last_words():
            self._client._do(_calls.hurried(_calls.stop(self.id)), patience=0)

    # Execution.

    @overload
    def run_code(
        self,
        code: str,
        *,
        language: Language = ...,
        timeout: float | None = ...,
        env: Mapping[str, str] | None = ...,
        background: Literal[False] = ...,
        on_output: _io.Callback[Output] | None = ...,
        max_output: Size | None = ...,
        exec_id: str | None = ...,
    ) -> Result: ...

    @overload
    def run_code(
        self,
        code: str,
        *,
        language: Language = ...,
        timeout: float | None = ...,
        env: Mapping[str, str] | None = ...,
        background: Literal[True],
        max_output: Size | None = ...,
        exec_id: str | None = ...,
    ) -> ExecInfo: ...

    def run_code(
        self,
        code: str,
        *,
        language: Language = "python",
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        background: bool = False,
        on_output: _io.Callback[Output] | None = None,
        max_output: Size | None = None,
        exec_id: str | None = None,
    ) -> Result | ExecInfo:
        """Runs code in the session's kernel, which remembers variables from call to call.

        >>> result = session.run_code("print('hi'); 6 * 7")
        >>> result.text, result.stdout
        ('42', 'hi\\n')

        `timeout` is how many seconds it may run (60 unless told); too long is a `status`, not an
        exception, and so is code that fails. `on_output` is called with every `Stdout` and `Stderr`
        as it comes. `max_output` bounds how much of each is kept (1 MiB unless told). With
        `background=True` it runs in a process of its own and this returns at once; see `join`.
        Whoever is cancelled while waiting interrupts the code.
        """
        call = _calls.execute(
            self.id,
            exec_id=exec_id or _calls.new_exec_id(),
            code=code,
            language=language,
            timeout=timeout,
            env=env,
            background=background,
            max_output=max_output,
        )
        return self._execute(call, background, on_output)

    @overload
    def run_command(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = ...,
        timeout: float | None = ...,
        env: Mapping[str, str] | None = ...,
        background: Literal[False] = ...,
        on_output: _io.Callback[Output] | None = ...,
        max_output: Size | None = ...,
        exec_id: str | None = ...,
    ) -> Result: ...

    @overload
    def run_command(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = ...,
        timeout: float | None = ...,
        env: Mapping[str, str] | None = ...,
        background: Literal[True],
        max_output: Size | None = ...,
        exec_id: str | None = ...,
    ) -> ExecInfo: ...

    def run_command(
        self,
        command: str | Sequence[str],
        *,
        cwd: str | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        background: bool = False,
        on_output: _io.Callback[Output] | None = None,
        max_output: Size | None = None,
        exec_id: str | None = None,
    ) -> Result | ExecInfo:
        """Runs one command in a process of its own: text for a shell, or a list of arguments.

        >>> (session.run_command(["wc", "-l", "data.csv"], cwd="/session")).stdout

        For a shell that remembers its directory and variables, use
        `run_code(..., language="bash")`. Everything else is as with `run_code`.
        """
        call = _calls.execute(
            self.id,
            exec_id=exec_id or _calls.new_exec_id(),
            command=command,
            cwd=cwd,
            timeout=timeout,
            env=env,
            background=background,
            max_output=max_output,
        )
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
                    # It takes its time, or waits for its turn: the same execution, as a stream.
                    pass
            with self._follow(call) as stream:
                return stream.result(on_output)
        except BaseException as error:
            if _io.is_cancellation(error):
                with _io.last_words():
                    self._client._do(_calls.hurried(_calls.interrupt(self.id, exec_id)), patience=0)
            raise

    def stream(
        self,
        code: str | None = None,
        *,
        command: str | Sequence[str] | None = None,
        language: Language | None = None,
        cwd: str | None = None,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bool = False,
        max_output: Size | None = None,
        exec_id: str | None = None,
    ) -> Stream:
        """Runs code, or a `command`, and tells what happens as it happens.

        >>> with session.stream("name = input('Who? ')", stdin=True) as stream:
        ...     for event in stream:
        ...         if isinstance(event, InputRequest):
        ...             stream.send("Ada\\n")

        It begins with the first event that is asked for, or with `stream.accepted()`. Lost connections
        and restarted servers are waited for, and the stream goes on where it was.
        """
        call = _calls.execute(
            self.id,
            exec_id=exec_id or _calls.new_exec_id(),
            code=code,
            command=command,
            language=language,
            cwd=cwd,
            timeout=timeout,
            env=env,
            stdin=stdin,
            max_output=max_output,
        )
        if (code is None) == (command is None):
            raise InvalidRequest("give either `code` or `command`")
        return self._follow(call)

    def _follow(self, call: Call[Result]) -> Stream:
        return Stream(self._client, ask=call, session_id=self.id, exec_id=_exec_id(call))

    def join(self, exec_id: str, offset: int = 0) -> Stream:
        """Follows an execution that was started before, from any position on.

        >>> started = session.run_code("...", background=True)
        >>> result = session.join(started.exec_id).result()
        """
        return Stream(self._client, session_id=self.id, exec_id=exec_id, offset=offset)

    def execs(self, limit: int | None = 100) -> list[ExecInfo]:
        """Executions, the newest first; all of them with `limit=None`."""
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
        """One execution, ended or not."""
        return self._client._do(_calls.get_exec(self.id, exec_id))

    def interrupt(self, exec_id: str | None = None) -> int:
        """Interrupts an execution as Ctrl-C would, or all of them; returns how many there were."""
        return self._client._do(_calls.interrupt(self.id, exec_id))

    def stdin(self, exec_id: str, data: str = "", *, close: bool = False) -> None:
        """Feeds an execution that was started with `stdin=True`; lines end with a newline."""
        self._client._do(_calls.stdin(self.id, exec_id, data, close))

    # What is in it.

    def state(self, language: Language = "python") -> KernelVariables:
        """The variables of a kernel: name, type, size, shape, preview.

        >>> (session.state())["df"].shape
        [2, 1]
        """
        return self._client._do(_calls.state(self.id, language))

    def log(self, limit: int = 100, after: int | None = None) -> list[LogEntry]:
        """What was executed, with code and output, the oldest first: the last `limit` entries, or
        those `after` the execution with this number."""
        return (self._client._do(_calls.log(self.id, limit=limit, after=after))).items

    @property
    def artifacts(self) -> Artifacts:
        """The files that this session has left in `/session/artifacts`."""
        return Artifacts(self._client, self.id)

    @property
    def datasets(self) -> Datasets:
        """What code in this session works on."""
        return Datasets(self._client, self.id)

    @property
    def files(self) -> Files:
        """The files in it, as a program inside sees them."""
        return Files(self._client, self.id)

    @property
    def browser(self) -> Browser:
        """Its browser: Chromium, inside, started when it is first used."""
        return Browser(self._client, self.id)

    # Its life.

    def refresh(self) -> SessionInfo:
        """Asks the server how the session is."""
        return self._keep(self._client._do(_calls.show(self.id)))

    def extend(self, ttl: int) -> SessionInfo:
        """Lets it live for at least `ttl` seconds from now."""
        return self._keep(self._client._do(_calls.extend(self.id, ttl)))

    def stop(self) -> SessionInfo:
        """Ends it, and what runs in it. Ending it twice is no error."""
        return self._keep(self._client._do(_calls.stop(self.id)))

    def remove(self) -> None:
        """Forgets it with its files, snapshots, executions and log, also if it has ended. One that is alive is
        stopped first. Its artifacts stay. Nothing of it can be had back: a second time raises `NotFound`."""
        self._client._do(_calls.remove(self.id))

    def start(self) -> SessionInfo:
        """Starts it again on the files it left, if it has storage `BIND`. Its variables are gone."""
        return self._keep(self._client._do(_calls.start(self.id)))

    def hibernate(self, *, force: bool = False) -> SessionInfo:
        """Makes files of it: it uses neither memory nor processor, and wakes with its variables and files
        when it is used again. Anything that uses it does; looking at results, logs and artifacts does not.

        What cannot be kept (threads, connections, processes, kernels other than Python's) is refused as
        `Conflict`, and with `force` lost: `lost` of what is returned lists it, and the next execution that meets it
        says so. Variables that can be kept never are.
        """
        return self._keep(self._client._do(_calls.hibernate(self.id, force)))

    def fork(self, count: int = 1, *, exec_id: str | None = None, force: bool = False) -> list[Session]:
        """Sessions that are what this one is, with the same variables and files, and from now on their own:
        all that were asked for, or none.

        >>> first, second = session.fork(2)

        With `exec_id` they are what it was after that execution, see `checkpoints`. With `force` they come without what
        cannot be copied; `info.lost` of each lists it. They are nobody's but yours to stop.
        """
        forked = self._client._do(_calls.fork(self.id, count=count, force=force, exec_id=exec_id))
        return [type(self)(self._client, info) for info in forked]

    def checkpoints(self) -> list[Checkpoint]:
        """What it can go back to, the oldest first, if it was made with `checkpoints=True`."""
        return self._client._do(_calls.checkpoints(self.id))

    def restore(self, exec_id: str) -> SessionInfo:
        """Goes back to what it was after an execution: variables and files. Later checkpoints stay.

        >>> first = session.run_code("x = 1")
        >>> session.run_code("x = 2")
        >>> session.restore(first.exec_id)
        >>> (session.run_code("x")).text
        '1'
        """
        return self._keep(self._client._do(_calls.restore(self.id, exec_id)))

    def is_alive(self) -> bool:
        """Whether the server knows it and it is alive."""
        try:
            return (self.refresh()).is_alive
        except NotFound:
            return False

    def _keep(self, info: SessionInfo) -> SessionInfo:
        self._info = info
        return info


def _exec_id(call: Call[Any]) -> str:
    return str((call.body or {})["exec_id"])
