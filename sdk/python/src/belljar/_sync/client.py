# Generated from ../_aio/client.py by scripts/generate_sync.py; change that file.
"""The client: finds the server, sends requests, and retries those that may be repeated."""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

import httpx
from typing_extensions import Unpack

from belljar import _calls, _retry, local
from belljar._sync import _io
from belljar._sync.artifacts import Artifacts
from belljar._sync.session import Session
from belljar._sync.stream import Stream
from belljar._sync.volumes import Volumes
from belljar._calls import Call
from belljar._options import RunOptions, SessionOptions
from belljar._requests import Requests, transport_options
from belljar._target import Target
from belljar.errors import BelljarError, Conflict, ServerUnavailable
from belljar.events import Output
from belljar.models import Health, Result, SessionInfo, Usage

T = TypeVar("T")

# The largest page of a list that the server returns.
_PAGE = 1000


class Client:
    """A client of a Belljar server.

    >>> with Client() as client:
    ...     with client.session() as session:
    ...         session.run_code("x = 41")
    ...         print((session.run_code("x + 1")).text)
    42

    The server's address is `url` (`http://...`, `https://...` or `unix:/path`), else `BELLJAR_URL`, else
    `SANDBOX_API_URL`. Without any of them the local server is used, which is started if it does not run; `"local"`
    selects it whatever the environment says. The API key is `api_key`, else `BELLJAR_API_KEY`. Settings are read from
    the environment, then from the file `.env` in the current directory.

    `patience` is how many seconds requests are retried while the server cannot be reached or has no capacity. A client
    can be shared by threads and tasks. Keep one and reuse it: it keeps its connections open.
    """

    def __init__(
        self, url: str | None = None, *, api_key: str | None = None, patience: float = _retry.PATIENCE
    ) -> None:
        self._target = Target.find(url, api_key)
        # The local server that the settings select; None if the server has an address.
        self._local = local.LocalServer.from_settings() if self._target.url is None else None
        self._requests = Requests(self._target)
        self._patience = patience
        self._pool = _io.Pool(self._connect)
        # Whether this server has ever responded.
        self._has_responded = False

    @property
    def url(self) -> str:
        """The server's address."""
        return f"unix:{self._local.socket}" if self._local is not None else str(self._target.url)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._target.url or 'local'!r})"

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. The server and its sessions go on."""
        self._pool.close()

    # Runs without a session.

    def run(
        self, code: str, *, on_output: _io.Callback[Output] | None = None, **options: Unpack[RunOptions]
    ) -> Result:
        """Runs code in a new sandbox, which is removed afterwards.

        >>> (client.run("import numpy as np; np.arange(3).sum()")).text
        'np.int64(3)'

        Files that the code leaves in `/work/artifacts` are in the result's `artifacts`. Code that fails raises no
        exception: see `Result.ok` and `Result.raise_for_error`. `on_output` is called with each `Stdout` and `Stderr`
        while the code runs. The other options are those of `RunOptions`.
        """
        call = self._adjusted(_calls.run(code, options), is_run=True)
        timeout = options.get("timeout") or 0
        # A long run is followed as a stream: the server keeps that connection alive.
        if on_output is None and timeout <= _calls.DEFAULT_EXEC_TIMEOUT:
            return self._do(call)
        with Stream(self, request=call) as stream:
            return stream.result(on_output)

    # Sessions.

    def session(
        self, key: str | None = None, *, stop_on_exit: bool | None = None, **options: Unpack[SessionOptions]
    ) -> _io.Opening[Session]:
        """Creates a session, or finds the one with this `key`: for example the id of a conversation or a user.

        >>> with client.session("thread-7", limits={"memory": "1G"}) as session:
        ...     session.run_code("import pandas as pd")

        At the end of an `with` block, a session without a key is stopped, and one with a key is kept for the
        next time; `stop_on_exit` overrides this. `session.info.how` is `created`, `found` or `restarted`. The other
        options are those of `SessionOptions`.
        """
        opened = self._open(_calls.create(key, options), key is None if stop_on_exit is None else stop_on_exit)
        return _io.opening(opened)

    def _open(self, call: Call[SessionInfo], stop_on_exit: bool) -> Session:
        adjusted = self._adjusted(call, is_run=False)
        try:
            info = self._do(adjusted)
        except Conflict as conflict:
            # A live session keeps the options that it was created with. Other options from settings are a warning;
            # other options from arguments are an error.
            if conflict.code != "session_differs" or adjusted.body == call.body:
                raise
            info = self._do(call)
            local.warn_about_session(info.id, conflict.message)
        return Session(self, info, stop_on_exit=stop_on_exit)

    def _adjusted(self, call: Call[T], *, is_run: bool) -> Call[T]:
        """Adds our settings to the call, where the local server was started with different ones."""
        if self._local is None:
            return call
        return replace(call, body=_io.in_thread(local.adjusted, self._local, call.body or {}, is_run))

    def get_session(self, session_id: str) -> Session:
        """The session with this id, alive or ended."""
        return Session(self, self._do(_calls.show(session_id)))

    def sessions(
        self, *, state: str | None = None, key: str | None = None, limit: int | None = 100
    ) -> list[Session]:
        """Lists sessions, alive and ended, the newest first; `limit=None` lists all of them."""
        found: list[Session] = []
        before = None
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(found))
            page = self._do(_calls.sessions(state=state, key=key, limit=size, before=before))
            found += [Session(self, info) for info in page.items]
            before = page.next
            if before is None:
                break
        return found

    # The server.

    @property
    def artifacts(self) -> Artifacts:
        """The artifacts of all sessions and runs."""
        return Artifacts(self)

    @property
    def volumes(self) -> Volumes:
        """Volumes: files that outlive sessions and that sessions can share."""
        return Volumes(self)

    def health(self) -> Health:
        """Whether the server works, and which limits it enforces."""
        return self._do(_calls.health())

    def usage(self, since: str | None = None) -> list[Usage]:
        """What this tenant has used per day, beginning with the day `since` (YYYY-MM-DD; 30 days ago by default)."""
        return self._do(_calls.usage(since))

    # Sending requests.

    def _do(self, call: Call[T], *, patience: float | None = None, unless: tuple[type, ...] = ()) -> T:
        """Sends a call, and retries it until there is a response. Errors of the types `unless` are not retried."""
        attempts = self._attempts(call.is_safe, patience)
        while True:
            try:
                return self._try(call)
            except BelljarError as error:
                if isinstance(error, unless):
                    raise
                self._wait_before_retry(attempts, error)

    def _attempts(self, is_safe: bool, patience: float | None = None) -> _retry.Attempts:
        patience = self._patience if patience is None else patience
        return _retry.Attempts(patience, is_safe=is_safe, has_responded=self._has_responded)

    def _wait_before_retry(self, attempts: _retry.Attempts, error: BelljarError) -> None:
        """Waits before the next attempt; raises the error if there is to be none."""
        _io.sleep(attempts.pause(error))
        if self._local is not None and isinstance(error, ServerUnavailable):
            # The local server ends by itself when it is not used.
            _io.in_thread(local.ensure, self._local)

    def _put(self, call: Call[T], content: Any, length: int | None) -> T:
        """Sends a call whose body is not JSON, without retries."""
        return self._answer(call, self._requests.of(call, content=content, length=length))

    def _try(self, call: Call[T]) -> T:
        return self._answer(call, self._requests.of(call))

    def _answer(self, call: Call[T], request: httpx.Request) -> T:
        response = self._send(request)
        body = self._read(response)
        if not response.is_success and response.status_code not in call.expected:
            raise _retry.refusal_of(response, body)
        return call.parse(body)

    def _send(self, request: httpx.Request) -> httpx.Response:
        """Sends a request, and returns the response before its body is read."""
        connections = self._pool.get()
        try:
            response = connections.send(request)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _retry.failure_of(error, self.url) from error
        self._has_responded = True
        return response

    def _read(self, response: httpx.Response) -> bytes:
        """The whole body. The connection can be reused only after all of it is read."""
        try:
            return response.read()
        except httpx.HTTPError as error:
            raise _retry.failure_of(error, self.url) from error
        finally:
            response.close()

    def _connect(self) -> _io.Connections:
        if self._target.may_need_proxy:
            return _io.Connections(direct=None)
        local_socket = _io.in_thread(local.ensure, self._local) if self._local is not None else None
        return _io.Connections(direct=transport_options(self._target, self._target.socket(local_socket)))
