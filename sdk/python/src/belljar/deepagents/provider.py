"""Sandboxes for Deep Agents Code (`dcode --sandbox belljar`), which finds this by the entry point `belljar`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from belljar._sync.client import Client
from belljar._sync.session import Session
from belljar.deepagents.backend import BelljarSandbox
from belljar.errors import NotFound

if TYPE_CHECKING:
    _Base = object
else:
    try:
        from deepagents_code.integrations.sandbox_provider import SandboxProvider as _Base
    except ImportError:  # optional
        _Base = object

# Seconds that a sandbox lives after its last use: one working day.
_TTL = 8 * 3600


class BelljarProvider(_Base):
    """Creates sandboxes, finds them by id or key, and stops them.

    The server is the one at `BELLJAR_URL`, or the local one. Parameters in the configuration of Deep Agents Code are
    those of `BelljarSandbox`.
    """

    @property
    def metadata(self) -> Any:
        try:
            from deepagents_code.integrations.sandbox_provider import SandboxProviderMetadata
        except ImportError:
            return None
        return SandboxProviderMetadata(name="belljar", working_dir="/session", backend_module="belljar.deepagents")

    def get_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> BelljarSandbox:
        """A new sandbox, or the one with this id or key. One that has ended is not replaced."""
        for_backend = {name: kwargs.pop(name) for name in _FOR_BACKEND if name in kwargs}
        with Client(kwargs.pop("url", None), api_key=kwargs.pop("api_key", None)) as client:
            if sandbox_id is None:
                return BelljarSandbox(client.session(**{"ttl": _TTL, **kwargs}), **for_backend)
            found = _find(client, sandbox_id)
            if found is None:
                raise _not_found(sandbox_id)
            return BelljarSandbox(found, **for_backend)

    def delete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        """Stops a sandbox and everything in it."""
        with Client(kwargs.get("url"), api_key=kwargs.get("api_key")) as client:
            found = _find(client, sandbox_id)
            if found is not None:
                found.stop()

    async def aget_or_create(self, *, sandbox_id: str | None = None, **kwargs: Any) -> BelljarSandbox:
        from anyio import to_thread

        return await to_thread.run_sync(lambda: self.get_or_create(sandbox_id=sandbox_id, **kwargs))

    async def adelete(self, *, sandbox_id: str, **kwargs: Any) -> None:
        from anyio import to_thread

        await to_thread.run_sync(lambda: self.delete(sandbox_id=sandbox_id, **kwargs))


# Parameters of the backend; all others are options of the session.
_FOR_BACKEND = ("timeout", "max_inline", "stream_output")


def _find(client: Client, sandbox_id: str) -> Session | None:
    try:
        found = client.get_session(sandbox_id)
        return found if found.info.is_alive else None
    except NotFound:
        return next((found for found in client.sessions(key=sandbox_id) if found.info.is_alive), None)


def _not_found(sandbox_id: str) -> Exception:
    message = f"there is no sandbox `{sandbox_id}`, or it has ended"
    try:
        from deepagents_code.integrations.sandbox_provider import SandboxNotFoundError
    except ImportError:
        return NotFound(message, code="session_not_found")
    error: Exception = SandboxNotFoundError(message)
    return error
