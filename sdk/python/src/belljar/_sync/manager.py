# Generated from ../_aio/manager.py by scripts/generate_sync.py; change that file.
"""Sessions by key: the methods of `SessionManager`."""

from __future__ import annotations

from belljar._sync import _io
from belljar._sync.session import Session
from belljar._manager import DIFFERS, ExecResult, ManagerState, Opened, with_origin
from belljar.errors import Conflict
from belljar.events import Output


class KeyedSessions(ManagerState):
    """Sessions that are found by the caller's own keys."""

    def start(self, session_id: str) -> Session:
        """Returns the session of this key, alive. It is created if there is none."""
        opened = self.open(session_id)
        self.tell_later(session_id, opened.notice)
        return opened.session

    def exec(
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
        opened = self.open(session_id)
        try:
            result = opened.session.run_code(code, timeout=timeout, on_output=on_output)
        except BaseException:
            self.tell_later(session_id, opened.notice)
            raise
        return opened.result(result)

    def stop(self, session_id: str) -> bool:
        """Ends the session of this key and everything that runs in it; false if there was none."""
        found = self._client.sessions(key=self._full_key(session_id))
        alive = [session for session in found if session.info.is_alive]
        for session in alive:
            session.stop()
        return bool(alive)

    def remove(self, session_id: str) -> bool:
        """Removes all sessions that had this key, with their files; false if there were none."""
        found = self._client.sessions(key=self._full_key(session_id))
        for session in found:
            session.remove()
        return bool(found)

    def run(
        self, code: str, timeout: float | None = None, *, on_output: _io.Callback[Output] | None = None
    ) -> ExecResult:
        """Runs Python in a new sandbox, which is removed afterwards.

        Files that the code leaves in `/work/artifacts` are copied to `outputs/<run_id>/` in the current directory if
        the server is a local one; otherwise `artifact_map` has their paths on the server's machine.
        """
        result = self._client.run(code, on_output=on_output, **self._run_options(timeout))
        return with_origin(_io.in_thread(self._with_local_copies, result))

    def open(self, key: str) -> Opened[Session]:
        """Returns the session of this key, with a notice about what is lost. The tools use this."""
        full_key = self._full_key(key)
        try:
            session = self._client.session(full_key, **self._session_options())
            return Opened(session, key, self._notices.opened(key, session.info))
        except Conflict as conflict:
            if conflict.code != DIFFERS:
                raise
            message = conflict.message
        session = self._client.session(full_key)
        opened = Opened(session, key, self._notices.opened(key, session.info))
        return opened.noting(self._notices.differs(key, session.id, message))
