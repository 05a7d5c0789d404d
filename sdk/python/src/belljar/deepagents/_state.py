"""What the synchronous and the asynchronous half of `BelljarSandbox` share: options, known sessions and notices."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from deepagents.backends.protocol import ExecuteResponse

from belljar import _keys
from belljar._aio.client import AsyncClient
from belljar._aio.session import AsyncSession
from belljar._options import SessionOptions
from belljar._sync.client import Client
from belljar._sync.session import Session
from belljar.deepagents import _answers
from belljar.errors import BelljarError, InvalidRequest, SessionEnded
from belljar.events import Output
from belljar.models import Result, SessionInfo

# Replaces a timeout of 0, which deepagents uses for no limit: one day.
_LONGEST_TIMEOUT = 24 * 3600
_OUTPUTS = "/session/.outputs"
# The longest argument that the kernel accepts; a longer command is passed in a file.
_MAX_ARGUMENT = 128 * 1024 - 1
# Both streams as one, in the order in which they were written, without changing the command.
_BOTH_STREAMS = 'exec /bin/bash -c "$1" 2>&1'
_BOTH_STREAMS_FROM_FILE = 'exec 2>&1; /bin/bash "$1"; status=$?; rm -f "$1"; exit $status'
# How many sessions are remembered; others are looked up again.
_MAX_KNOWN = 4096

# Set while deepagents runs commands for `ls`, `read`, `grep` and so on: their output is not streamed, and is not cut.
_is_internal: ContextVar[bool] = ContextVar("belljar_internal_command", default=False)


class SandboxState:
    """The state of a `BelljarSandbox`."""

    def __init__(
        self,
        session: Session | AsyncSession | str | None,
        *,
        per_thread: bool,
        url: str | None,
        api_key: str | None,
        timeout: int,
        max_inline: int,
        stream_output: bool,
        options: SessionOptions,
    ) -> None:
        self._given: SessionInfo | None = None
        if isinstance(session, (Session, AsyncSession)):
            if per_thread:
                raise InvalidRequest("`per_thread` needs a key or nothing, not a session")
            self._given = session.info
            target = session._client._target
            url, api_key = target.url or "local", target.api_key
            session = None
        self._client = Client(url, api_key=api_key)
        self._async_client = AsyncClient(url, api_key=api_key)
        self._per_thread = per_thread
        # No other program can know the key of such a session, so `close` stops it.
        self._is_own = session is None and not per_thread and self._given is None
        self._key = session or ("deepagents" if per_thread else f"deepagents-{secrets.token_hex(8)}")
        self._no_thread = self._key_of(secrets.token_hex(8))
        self._timeout = timeout
        self._max_inline = max_inline
        self._stream_output = stream_output
        self._options = options
        self._known: OrderedDict[str, SessionInfo] = OrderedDict()
        # Notices that the next command must begin with, by key.
        self._notices: dict[str, str] = {}

    @property
    def id(self) -> str:
        """The id of the given session; otherwise the key, which finds the session again."""
        return self._given.id if self._given is not None else self._current_key()

    # Commands.

    def _limit(self, timeout: int | None) -> int:
        asked = self._timeout if timeout is None else timeout
        return asked if asked > 0 else _LONGEST_TIMEOUT

    def _is_too_long(self, output: str) -> bool:
        # A character has one to four bytes.
        if _is_internal.get() or 4 * len(output) <= self._max_inline:
            return False
        return len(output) > self._max_inline or len(output.encode()) > self._max_inline

    def _answer(self, result: Result, output: str, limit: int, is_cut: bool) -> ExecuteResponse:
        response = _answers.answer(result, output, limit=limit, is_cut=is_cut)
        notice = self._take_notice()
        if notice is not None:
            response.output = f"{notice}\n{response.output}"
        return response

    def _not_run(self, error: BelljarError) -> ExecuteResponse:
        notice = self._take_notice() or f"[The sandbox of this conversation is a new one: {error.message}.]"
        return ExecuteResponse(output=f"{notice}\nThe command was not run in the new one.", exit_code=1)

    def _on_output(self) -> Callable[[Output], None] | None:
        if not self._stream_output or _is_internal.get():
            return None
        writer = _stream_writer()
        if writer is None:
            return None
        write, sandbox = writer, self.id

        def send(event: Output) -> None:
            write({"type": "belljar.output", "sandbox": sandbox, "text": event.text})

        return send

    def _file_error(self, error: BelljarError) -> str:
        if is_end(error):
            # The next call opens another session, and its first command begins with a notice.
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

    def _find(self) -> SessionInfo | None:
        return self._given or self._known.get(self._current_key())

    def _remember(self, key: str, info: SessionInfo) -> SessionInfo:
        self._known[key] = info
        while len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        notice = _answers.replacement(info)
        if notice is not None:
            self._notices[key] = notice
            while len(self._notices) > _MAX_KNOWN:
                del self._notices[next(iter(self._notices))]
        return info

    def _forget(self, error: BelljarError) -> None:
        """Forgets a session that has ended. Raises the error if the user gave this session, or if it has not ended."""
        if self._given is not None or not is_end(error):
            raise error
        self._known.pop(self._current_key(), None)

    def _take_notice(self) -> str | None:
        """The notice for this session, once, for output that an agent reads."""
        return None if _is_internal.get() else self._notices.pop(self._current_key(), None)


@contextmanager
def internal_commands() -> Iterator[None]:
    token = _is_internal.set(True)
    try:
        yield
    finally:
        _is_internal.reset(token)


def is_end(error: BelljarError) -> bool:
    return isinstance(error, SessionEnded) or error.code == "session_not_found"


def output_path(exec_id: str) -> str:
    """The file inside for output that is too long."""
    return f"{_OUTPUTS}/{exec_id}.txt"


def script_path(command: str, exec_id: str) -> str | None:
    """The file inside for a command that is too long for an argument."""
    if 4 * len(command) <= _MAX_ARGUMENT or len(command.encode()) <= _MAX_ARGUMENT:
        return None
    return f"/tmp/.{exec_id}.sh"


def arguments_of(command: str, script: str | None) -> list[str]:
    if script is not None:
        return ["/bin/bash", "-c", _BOTH_STREAMS_FROM_FILE, "bash", script]
    return ["/bin/bash", "-c", _BOTH_STREAMS, "bash", command]


def _thread_id() -> str | None:
    """The conversation that LangGraph runs now."""
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
