"""`BelljarSandbox`: where a deep agent runs commands and keeps files.

Which session is used is decided with every call, so that one backend serves all conversations:

```text
  BelljarSandbox()                  one session of its own, stopped by close()
  BelljarSandbox("build")           the session with this key, found again by any program
  BelljarSandbox(session)           that one
  BelljarSandbox(per_thread=True)   one for every `thread_id` of LangGraph, found again by it
```

A session that has ended is never replaced in silence: the first command in the new one says so
before anything else, and a session that was given as such is not replaced at all.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import secrets
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import TracebackType
from typing import Any

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse
from deepagents.backends.sandbox import BaseSandbox

from belljar import _keys
from belljar._aio.client import AsyncClient
from belljar._aio.files import AsyncFiles
from belljar._aio.session import AsyncSession
from belljar._calls import Access, AskedLimits, Storage, new_exec_id
from belljar._sync.client import Client
from belljar._sync.files import Files
from belljar._sync.session import Session
from belljar.deepagents import _answers
from belljar.errors import BelljarError, InvalidRequest, NotFound, SessionEnded
from belljar.events import Output
from belljar.models import Result, SessionInfo

# Seconds a command may take unless the agent says otherwise.
DEFAULT_TIMEOUT = 120
# Instead of 0, which means that there is no limit; a day is as good as none, and still one.
_LONGEST_TIMEOUT = 24 * 3600
# Bytes of output that an agent is given; more is left in a file inside, and shown in part.
MAX_INLINE = 1 << 20
_PREVIEW = 64 << 10
_OUTPUTS = "/session/.outputs"
# The most that a server keeps of an output.
_MAX_OUTPUT = "64M"
# The kernel takes no longer argument; a longer command goes by way of a file.
_MAX_ARGUMENT = 128 * 1024 - 1
# Both streams as one, in the order they were written; the command itself is not touched.
_AS_ONE = 'exec /bin/bash -c "$1" 2>&1'
_AS_ONE_FROM_FILE = 'exec 2>&1; /bin/bash "$1"; status=$?; rm -f "$1"; exit $status'
# Conversations whose sessions are remembered; others are looked up again.
_MAX_KNOWN = 4096
_AT_ONCE = 8

# Set while commands are those of `ls`, `read`, `grep`, ..., which nobody wants to watch, and which
# must come back whole.
_is_internal: ContextVar[bool] = ContextVar("belljar_internal_command", default=False)


class BelljarSandbox(BaseSandbox):
    """A sandbox for deep agents.

    >>> with BelljarSandbox() as backend:
    ...     agent = create_deep_agent(model=model, backend=backend)

    `session` is a session, or a key to find one by; with `per_thread` every conversation has one of
    its own, with the key `KEY::THREAD_ID`. `timeout` is how many seconds a command may take where the
    agent does not say. Output beyond `max_inline` bytes is left in a file inside. With
    `stream_output` commands tell their output while they run, in LangGraph's stream mode `custom`,
    as `{"type": "belljar.output", "sandbox": id, "text": text}`. Everything else is for sessions
    that are made, as with `Client.session`.
    """

    def __init__(
        self,
        session: Session | AsyncSession | str | None = None,
        *,
        per_thread: bool = False,
        url: str | None = None,
        api_key: str | None = None,
        timeout: int = DEFAULT_TIMEOUT,
        max_inline: int = MAX_INLINE,
        stream_output: bool = True,
        storage: Storage | None = None,
        datasets: Access | None = None,
        limits: AskedLimits | None = None,
        ttl: int | None = None,
        idle_timeout: int | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        image: str | None = None,
    ) -> None:
        self._given: SessionInfo | None = None
        if isinstance(session, (Session, AsyncSession)):
            if per_thread:
                raise InvalidRequest("one session cannot be one per thread; give a key, or nothing")
            self._given = session.info
            target = session._client._target
            url, api_key = target.url or "local", target.api_key
            session = None
        self._client = Client(url, api_key=api_key)
        self._aclient = AsyncClient(url, api_key=api_key)
        self._per_thread = per_thread
        # Ours alone, if nobody else can know the key.
        self._is_own = session is None and not per_thread and self._given is None
        self._key = session or ("deepagents" if per_thread else f"deepagents-{secrets.token_hex(8)}")
        self._no_thread = self._key_of(secrets.token_hex(8))
        self._timeout = timeout
        self._max_inline = max_inline
        self._stream_output = stream_output
        self._options: dict[str, Any] = {
            "storage": storage,
            "datasets": datasets,
            "limits": limits,
            "ttl": ttl,
            "idle_timeout": idle_timeout,
            "env": env,
            "metadata": metadata,
            "image": image,
        }
        self._known: OrderedDict[str, SessionInfo] = OrderedDict()
        # What the next command in a session has to say first, by key.
        self._news: dict[str, str] = {}

    @property
    def id(self) -> str:
        """The session's id if it was given; else its key, which finds it again."""
        return self._given.id if self._given is not None else self._current_key()

    def session(self) -> Session:
        """The session of this conversation, for all else there is to do with it."""
        return Session(self._client, self._open())

    def stop_thread(self, thread_id: str) -> bool:
        """Stops the session of a conversation that is over; false if there is none."""
        key = self._key_of(thread_id)
        self._known.pop(key, None)
        alive = [found for found in self._client.sessions(key=key) if found.info.is_alive]
        for session in alive:
            session.stop()
        return bool(alive)

    async def astop_thread(self, thread_id: str) -> bool:
        """The same as `stop_thread`, to be awaited."""
        key = self._key_of(thread_id)
        self._known.pop(key, None)
        alive = [found for found in await self._aclient.sessions(key=key) if found.info.is_alive]
        for session in alive:
            await session.stop()
        return bool(alive)

    def close(self) -> None:
        """Stops the session if it is this backend's own, and closes the connections."""
        try:
            if self._is_own and self._key in self._known:
                self.session().stop()
        finally:
            self._client.close()

    async def aclose(self) -> None:
        """The same as `close`, to be awaited."""
        try:
            if self._is_own and self._key in self._known:
                await AsyncSession(self._aclient, await self._aopen()).stop()
        finally:
            self._client.close()
            await self._aclient.aclose()

    def __enter__(self) -> BelljarSandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> BelljarSandbox:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    # Commands.

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a command in `/session`, and returns what it printed on both streams."""
        limit = self._limit(timeout)
        info = self._open()
        exec_id = new_exec_id()
        try:
            script = _script(command, exec_id)
            if script is not None:
                Files(self._client, info.id).write(script, command.encode())
            result = Session(self._client, info).run_command(
                _argv(command, script),
                timeout=limit,
                max_output=_MAX_OUTPUT,
                on_output=self._on_output(),
                exec_id=exec_id,
            )
            output, is_cut = result.stdout + result.stderr, False
            if self._is_too_long(output):
                where = self._kept_at(exec_id)
                try:
                    Files(self._client, info.id).write(where, output.encode())
                    told = f"{_all(result)} is in {where}"
                except BelljarError as error:
                    told = f"it could not be kept: {_answers.file_error(error)}"
                output, is_cut = _answers.preview(output, _PREVIEW, told), True
        except InvalidRequest as error:
            return ExecuteResponse(output=str(error), exit_code=1)
        except (SessionEnded, NotFound) as error:
            self._forget(error)
            self._open()
            return self._not_there(error)
        return self._answer(result, output, limit, is_cut)

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """The same as `execute`, to be awaited. Who is cancelled interrupts the command."""
        limit = self._limit(timeout)
        info = await self._aopen()
        exec_id = new_exec_id()
        try:
            script = _script(command, exec_id)
            if script is not None:
                await AsyncFiles(self._aclient, info.id).write(script, command.encode())
            result = await AsyncSession(self._aclient, info).run_command(
                _argv(command, script),
                timeout=limit,
                max_output=_MAX_OUTPUT,
                on_output=self._on_output(),
                exec_id=exec_id,
            )
            output, is_cut = result.stdout + result.stderr, False
            if self._is_too_long(output):
                where = self._kept_at(exec_id)
                try:
                    await AsyncFiles(self._aclient, info.id).write(where, output.encode())
                    told = f"{_all(result)} is in {where}"
                except BelljarError as error:
                    told = f"it could not be kept: {_answers.file_error(error)}"
                output, is_cut = _answers.preview(output, _PREVIEW, told), True
        except InvalidRequest as error:
            return ExecuteResponse(output=str(error), exit_code=1)
        except (SessionEnded, NotFound) as error:
            self._forget(error)
            await self._aopen()
            return self._not_there(error)
        return self._answer(result, output, limit, is_cut)

    def _limit(self, timeout: int | None) -> int:
        asked = self._timeout if timeout is None else timeout
        return asked if asked > 0 else _LONGEST_TIMEOUT

    def _is_too_long(self, output: str) -> bool:
        # No character takes less than a byte, nor more than four.
        if _is_internal.get() or 4 * len(output) <= self._max_inline:
            return False
        return len(output) > self._max_inline or len(output.encode()) > self._max_inline

    def _kept_at(self, exec_id: str) -> str:
        return f"{_OUTPUTS}/{exec_id}.txt"

    def _answer(self, result: Result, output: str, limit: int, is_cut: bool) -> ExecuteResponse:
        response = _answers.answer(result, output, limit=limit, is_cut=is_cut)
        news = self._tell_news()
        if news is not None:
            response.output = f"{news}\n{response.output}"
        return response

    def _not_there(self, error: BelljarError) -> ExecuteResponse:
        news = self._tell_news() or f"[The sandbox of this conversation is a new one: {error.message}.]"
        return ExecuteResponse(output=f"{news}\nThe command was not run in the new one.", exit_code=1)

    def _on_output(self) -> Callable[[Output], None] | None:
        if not self._stream_output or _is_internal.get():
            return None
        writer = _stream_writer()
        if writer is None:
            return None
        write, sandbox = writer, self.id

        def tell(event: Output) -> None:
            write({"type": "belljar.output", "sandbox": sandbox, "text": event.text})

        return tell

    # Files.

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes files by their absolute paths; their directories are made."""
        session_id = self._open().id
        return [FileUploadResponse(path=path, error=self._upload(session_id, path, body)) for path, body in files]

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """The same as `upload_files`, to be awaited."""
        session_id = (await self._aopen()).id
        errors = await _some_at_once([self._aupload(session_id, path, body) for path, body in files])
        return [FileUploadResponse(path=path, error=error) for (path, _), error in zip(files, errors)]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Reads files by their absolute paths."""
        session_id = self._open().id
        return [self._download(session_id, path) for path in paths]

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """The same as `download_files`, to be awaited."""
        session_id = (await self._aopen()).id
        return await _some_at_once([self._adownload(session_id, path) for path in paths])

    def _upload(self, session_id: str, path: str, content: bytes) -> str | None:
        if not _answers.is_absolute(path):
            return "invalid_path"
        try:
            Files(self._client, session_id).write(path, content)
        except BelljarError as error:
            return self._file_error(error)
        return None

    async def _aupload(self, session_id: str, path: str, content: bytes) -> str | None:
        if not _answers.is_absolute(path):
            return "invalid_path"
        try:
            await AsyncFiles(self._aclient, session_id).write(path, content)
        except BelljarError as error:
            return self._file_error(error)
        return None

    def _download(self, session_id: str, path: str) -> FileDownloadResponse:
        if not _answers.is_absolute(path):
            return FileDownloadResponse(path=path, error="invalid_path")
        try:
            return FileDownloadResponse(path=path, content=Files(self._client, session_id).read(path))
        except BelljarError as error:
            return FileDownloadResponse(path=path, error=self._file_error(error))

    async def _adownload(self, session_id: str, path: str) -> FileDownloadResponse:
        if not _answers.is_absolute(path):
            return FileDownloadResponse(path=path, error="invalid_path")
        try:
            content = await AsyncFiles(self._aclient, session_id).read(path)
            return FileDownloadResponse(path=path, content=content)
        except BelljarError as error:
            return FileDownloadResponse(path=path, error=self._file_error(error))

    def _file_error(self, error: BelljarError) -> str:
        if _is_end(error):
            # The next call finds another session, and its first command says so.
            self._forget(error)
        return _answers.file_error(error)

    # Sessions.

    def _current_key(self) -> str:
        if not self._per_thread:
            return self._key
        thread = _thread_id()
        return self._no_thread if thread is None else self._key_of(thread)

    def _key_of(self, thread_id: str) -> str:
        return _keys.joined(self._key, thread_id)

    def _open(self) -> SessionInfo:
        known = self._find()
        if known is not None:
            return known
        key = self._current_key()
        return self._remember(key, self._client.session(key, **self._options).info)

    async def _aopen(self) -> SessionInfo:
        known = self._find()
        if known is not None:
            return known
        key = self._current_key()
        return self._remember(key, (await self._aclient.session(key, **self._options)).info)

    def _find(self) -> SessionInfo | None:
        return self._given or self._known.get(self._current_key())

    def _remember(self, key: str, info: SessionInfo) -> SessionInfo:
        self._known[key] = info
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        news = _answers.replacement(info)
        if news is not None:
            self._news[key] = news
            while len(self._news) > _MAX_KNOWN:
                del self._news[next(iter(self._news))]
        return info

    def _forget(self, error: BelljarError) -> None:
        """Lets go of a session that has ended; raises if it was this one that was wanted, or if it has not."""
        if self._given is not None or not _is_end(error):
            raise error
        self._known.pop(self._current_key(), None)

    def _tell_news(self) -> str | None:
        """What has to be said, once, to whoever reads it as text."""
        return None if _is_internal.get() else self._news.pop(self._current_key(), None)


def _all(result: Result) -> str:
    return "what was kept" if result.dropped else "all of it"


def _is_end(error: BelljarError) -> bool:
    return isinstance(error, SessionEnded) or error.code == "session_not_found"


def _script(command: str, exec_id: str) -> str | None:
    """Where to put a command that is too long for an argument."""
    if 4 * len(command) <= _MAX_ARGUMENT or len(command.encode()) <= _MAX_ARGUMENT:
        return None
    return f"/tmp/.{exec_id}.sh"


def _argv(command: str, script: str | None) -> list[str]:
    if script is not None:
        return ["/bin/bash", "-c", _AS_ONE_FROM_FILE, "bash", script]
    return ["/bin/bash", "-c", _AS_ONE, "bash", command]


def _thread_id() -> str | None:
    """The conversation that LangGraph is running right now."""
    from langgraph.config import get_config

    try:
        found = (get_config().get("configurable") or {}).get("thread_id")
    except RuntimeError:
        return None
    return None if found is None else str(found)


def _stream_writer() -> Callable[[Any], None] | None:
    from langgraph.config import get_stream_writer

    try:
        return get_stream_writer()
    except (RuntimeError, KeyError):
        return None


async def _some_at_once(calls: list[Coroutine[Any, Any, Any]]) -> list[Any]:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def gated(call: Coroutine[Any, Any, Any]) -> Any:
        async with gate:
            return await call

    return await asyncio.gather(*map(gated, calls))


@contextmanager
def _internally() -> Iterator[None]:
    token = _is_internal.set(True)
    try:
        yield
    finally:
        _is_internal.reset(token)


def _hushed(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method whose commands are its own business."""
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with _internally():
                return await method(*args, **kwargs)

        return awaited

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        with _internally():
            return method(*args, **kwargs)

    return called


# Whatever this version of deepagents makes of commands: `ls`, `read`, `grep`, and what comes yet.
for _name in dir(BaseSandbox):
    _method = inspect.getattr_static(BaseSandbox, _name)
    _uses_commands = not _name.startswith("_") and inspect.isfunction(_method) and "execute" not in _name
    if _uses_commands and _name not in vars(BelljarSandbox):
        setattr(BelljarSandbox, _name, _hushed(_method))


__all__ = ["BelljarSandbox"]
