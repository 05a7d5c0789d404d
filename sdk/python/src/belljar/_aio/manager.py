"""Sessions by key: the methods of `SessionManager`."""

from __future__ import annotations

from belljar._aio import _io
from belljar._aio.session import AsyncSession
from belljar._manager import DIFFERS, ExecResult, ManagerState, Opened, with_origin
from belljar.errors import Conflict
from belljar.events import Output


class AsyncKeyedSessions(ManagerState):
    """Sessions that are found by the caller's own keys."""

    async def astart(self, session_id: str) -> AsyncSession:
        """Returns the session of this key, alive. It is created if there is none."""
        opened = await self.aopen(session_id)
        self.tell_later(session_id, opened.notice)
        return opened.session

    async def aexec(
        self,
        session_id: str,
        code: str,
        timeout: float | None = None,
        *,
        on_output: _io.Callback[Output] | None = None,
    ) -> ExecResult:
        """Runs Python in the session of this key, which keeps variables from call to call.

        Code that fails raises no exception: see `ExecResult.ok`. If the session replaces one that has ended,
        `ExecResult.notice` says what is lost.
        """
        opened = await self.aopen(session_id)
        try:
            result = await opened.session.run_code(code, timeout=timeout, on_output=on_output)
        except BaseException:
            self.tell_later(session_id, opened.notice)
            raise
        return opened.result(result)

    async def astop(self, session_id: str) -> bool:
        """Ends the session of this key and everything that runs in it; false if there was none."""
        found = await self._async_client.sessions(key=self._full_key(session_id))
        alive = [session for session in found if session.info.is_alive]
        for session in alive:
            await session.stop()
        return bool(alive)

    async def aremove(self, session_id: str) -> bool:
        """Removes all sessions that had this key, with their files; false if there were none."""
        found = await self._async_client.sessions(key=self._full_key(session_id))
        for session in found:
            await session.remove()
        return bool(found)

    async def arun(
        self, code: str, timeout: float | None = None, *, on_output: _io.Callback[Output] | None = None
    ) -> ExecResult:
        """Runs Python in a new sandbox, which is removed afterwards.

        Files that the code leaves in `/work/artifacts` are copied to `outputs/<run_id>/` in the current directory if
        the server is a local one; otherwise `artifact_map` has their paths on the server's machine.
        """
        result = await self._async_client.run(code, on_output=on_output, **self._run_options(timeout))
        return with_origin(await _io.in_thread(self._with_local_copies, result))

    async def aopen(self, key: str) -> Opened[AsyncSession]:
        """Returns the session of this key, with a notice about what is lost. The tools use this."""
        full_key = self._full_key(key)
        try:
            session = await self._async_client.session(full_key, **self._session_options())
            return Opened(session, key, self._notices.opened(key, session.info))
        except Conflict as conflict:
            if conflict.code != DIFFERS:
                raise
            message = conflict.message
        session = await self._async_client.session(full_key)
        opened = Opened(session, key, self._notices.opened(key, session.info))
        return opened.noting(self._notices.differs(key, session.id, message))
