"""The client: finds the server, sends calls, tries again where that helps."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

import httpx

from belljar import _calls, _retry, local
from belljar._aio import _io
from belljar._aio.artifacts import AsyncArtifacts
from belljar._aio.session import AsyncSession
from belljar._aio.stream import AsyncStream
from belljar._aio.volumes import AsyncVolumes
from belljar._calls import Access, AskedLimits, AskedVolumes, Call, Checkpoints, Language, Network, Size, Storage
from belljar._requests import Requests, transport_options
from belljar._target import Target
from belljar.errors import BelljarError, Conflict, ServerUnavailable
from belljar.events import Output
from belljar.models import Health, Result, SessionInfo, Usage

T = TypeVar("T")

# The largest page of a list that the server gives.
_PAGE = 1000


class AsyncClient:
    """A Belljar server.

    >>> async with AsyncClient() as client:
    ...     async with client.session() as session:
    ...         await session.run_code("x = 41")
    ...         print((await session.run_code("x + 1")).text)
    42

    The server is `url` (`http://...`, `https://...` or `unix:/path`), else `BELLJAR_URL`, else
    `SANDBOX_API_URL`, else the local one, which is started if it does not run (`"local"` means that
    one whatever the environment says). The key is `api_key`, else `BELLJAR_API_KEY`. These and all
    other settings come from the environment, then from the `.env` of the current directory.

    `patience` is how many seconds a server that went away is waited for, and one that has no room.
    A client is safe to share and worth keeping: it keeps its connections.
    """

    def __init__(
        self, url: str | None = None, *, api_key: str | None = None, patience: float = _retry.PATIENCE
    ) -> None:
        self._target = Target.find(url, api_key)
        # The local server that these settings ask for; None where the server is named.
        self._place = local.Place.wanted() if self._target.url is None else None
        self._requests = Requests(self._target)
        self._patience = patience
        self._pool = _io.Pool(self._connect)
        # Whether this server has ever answered us.
        self._heard = False

    @property
    def url(self) -> str:
        """The server's address."""
        return f"unix:{self._place.socket}" if self._place is not None else str(self._target.url)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._target.url or 'local'!r})"

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Closes the connections. Sessions and the server stay."""
        await self._pool.aclose()

    # One call, gone afterwards.

    async def run(
        self,
        code: str,
        *,
        language: Language = "python",
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        limits: AskedLimits | None = None,
        datasets: Access | None = None,
        image: str | None = None,
        network: Network | None = None,
        volumes: AskedVolumes | None = None,
        max_output: Size | None = None,
        on_output: _io.Callback[Output] | None = None,
    ) -> Result:
        """Runs code in a fresh sandbox, which is gone afterwards.

        >>> (await client.run("import numpy as np; np.arange(3).sum()")).text
        'np.int64(3)'

        Files that it leaves in `/work/artifacts` are in the result's `artifacts`. Code that fails is
        no exception: see `Result.ok` and `Result.raise_for_error`.
        """
        call = _calls.run(
            code,
            language=language,
            timeout=timeout,
            env=env,
            limits=limits,
            datasets=datasets,
            image=image,
            network=network,
            volumes=volumes,
            max_output=max_output,
        )
        call = await self._adjusted(call, is_run=True)
        # What takes long is followed as a stream, which is never silent while the server lives.
        if on_output is None and (timeout or 0) <= _calls.DEFAULT_EXEC_TIMEOUT:
            return await self._do(call)
        async with AsyncStream(self, ask=call) as stream:
            return await stream.result(on_output)

    # Sessions.

    def session(
        self,
        key: str | None = None,
        *,
        storage: Storage | None = None,
        datasets: Access | None = None,
        limits: AskedLimits | None = None,
        ttl: int | None = None,
        idle_timeout: int | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        image: str | None = None,
        network: Network | None = None,
        volumes: AskedVolumes | None = None,
        checkpoints: Checkpoints | None = None,
        workspace: str | os.PathLike[str] | None = None,
        idle_hibernate_sec: int | None = None,
        stop_on_exit: bool | None = None,
    ) -> _io.Opening[AsyncSession]:
        """Makes a session, or finds the one with this `key`: a conversation, a thread, a user.

        >>> async with client.session("thread-7", limits={"memory": "1G"}) as session:
        ...     await session.run_code("import pandas as pd")

        Used with `async with`, a session without a key is stopped at the end, and one with a key is
        kept for the next time; `stop_on_exit` says otherwise. What is left out is the server's to
        choose. `session.info.how` tells whether it was `created`, `found` or `restarted`.

        Its code may go where `network` says, as far as the server allows: `"none"`, `"open"`, or
        `{"allow": ["example.org", "*.example.com:443"]}`. `volumes`, such as `{"models": "ro", "results": "rw"}`,
        are at `/volumes/NAME`; see `client.volumes`.

        `workspace` is a directory of the server's machine that code has at `/workspace`, to read and to write, where
        the server allows that; its files belong to the directory's owner. After `idle_hibernate_sec` seconds
        without use large values of Python go to disk, and are back before code runs again; 0 is never.

        With `checkpoints=True` every execution leaves a point that `session.restore()` goes back
        to and `session.fork()` can begin from.
        """
        call = _calls.create(
            key=key,
            storage=storage,
            datasets=datasets,
            limits=limits,
            ttl=ttl,
            idle_timeout=idle_timeout,
            env=env,
            metadata=metadata,
            image=image,
            network=network,
            volumes=volumes,
            checkpoints=checkpoints,
            workspace=None if workspace is None else os.path.abspath(workspace),
            idle_hibernate_sec=idle_hibernate_sec,
        )
        return _io.opening(self._open(call, key is None if stop_on_exit is None else stop_on_exit))

    async def _open(self, call: Call[SessionInfo], stop_on_exit: bool) -> AsyncSession:
        adjusted = await self._adjusted(call, is_run=False)
        try:
            info = await self._do(adjusted)
        except Conflict as conflict:
            # A session that lives has the settings it began with. Only arguments insist on others.
            if conflict.code != "session_differs" or adjusted.body == call.body:
                raise
            info = await self._do(call)
            local.tell_of_session(info.id, conflict.message)
        return AsyncSession(self, info, stop_on_exit=stop_on_exit)

    async def _adjusted(self, call: Call[T], *, is_run: bool) -> Call[T]:
        """With our settings, where the local server was started with others."""
        if self._place is None:
            return call
        return replace(call, body=await _io.work(local.adjusted, self._place, call.body or {}, is_run))

    async def get_session(self, session_id: str) -> AsyncSession:
        """The session with this id, alive or not."""
        return AsyncSession(self, await self._do(_calls.show(session_id)))

    async def sessions(
        self, *, state: str | None = None, key: str | None = None, limit: int | None = 100
    ) -> list[AsyncSession]:
        """Sessions, the newest first, also those that have ended; all of them with `limit=None`."""
        found: list[AsyncSession] = []
        before = None
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(found))
            page = await self._do(_calls.sessions(state=state, key=key, limit=size, before=before))
            found += [AsyncSession(self, info) for info in page.items]
            before = page.next
            if before is None:
                break
        return found

    # The server.

    @property
    def artifacts(self) -> AsyncArtifacts:
        """Files that sessions and runs have left."""
        return AsyncArtifacts(self)

    @property
    def volumes(self) -> AsyncVolumes:
        """Files that outlive sessions and are shared by them."""
        return AsyncVolumes(self)

    async def health(self) -> Health:
        """Whether the server is well, and which limits it enforces."""
        return await self._do(_calls.health())

    async def usage(self, since: str | None = None) -> list[Usage]:
        """What this tenant has used per day, from `since` (YYYY-MM-DD; 30 days ago unless told)."""
        return await self._do(_calls.usage(since))

    # How all of this travels.

    async def _do(self, call: Call[T], *, patience: float | None = None, unless: tuple[type, ...] = ()) -> T:
        """Sends a call until it is answered, or until that is no use, or one of `unless` happens."""
        attempts = self._attempts(call.is_safe, patience)
        while True:
            try:
                return await self._try(call)
            except BelljarError as error:
                if isinstance(error, unless):
                    raise
                await self._endure(attempts, error)

    def _attempts(self, is_safe: bool, patience: float | None = None) -> _retry.Attempts:
        patience = self._patience if patience is None else patience
        return _retry.Attempts(patience, is_safe=is_safe, heard_before=self._heard)

    async def _endure(self, attempts: _retry.Attempts, error: BelljarError) -> None:
        """Waits a moment before the next attempt, or gives up by raising."""
        await _io.sleep(attempts.pause(error))
        if self._place is not None and isinstance(error, ServerUnavailable):
            # The local server may have ended by itself, having had nothing to do.
            await _io.work(local.ensure, self._place)

    async def _put(self, call: Call[T], content: Any, length: int | None) -> T:
        """Sends a call with a body that is not JSON, once."""
        return await self._answer(call, self._requests.of(call, content=content, length=length))

    async def _try(self, call: Call[T]) -> T:
        return await self._answer(call, self._requests.of(call))

    async def _answer(self, call: Call[T], request: httpx.Request) -> T:
        response = await self._send(request)
        body = await self._read(response)
        if not response.is_success and response.status_code not in call.expected:
            raise _retry.understood(response, body)
        return call.parse(body)

    async def _send(self, request: httpx.Request) -> httpx.Response:
        """Sends a request; the body of the answer is still to be read."""
        line = await self._pool.get()
        try:
            response = await line.send(request)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _retry.failed(error, self.url) from error
        self._heard = True
        return response

    async def _read(self, response: httpx.Response) -> bytes:
        """The whole body. Read to its end, its connection can be used again."""
        try:
            return await response.aread()
        except httpx.HTTPError as error:
            raise _retry.failed(error, self.url) from error
        finally:
            await response.aclose()

    async def _connect(self) -> _io.Line:
        if self._target.may_need_proxy:
            return _io.Line(straight=None)
        local_socket = await _io.work(local.ensure, self._place) if self._place is not None else None
        return _io.Line(straight=transport_options(self._target, self._target.socket(local_socket)))
