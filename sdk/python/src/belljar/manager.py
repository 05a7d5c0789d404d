"""Sessions by the caller's own keys: one sandbox per conversation.

The server stores which session belongs to a key, so other programs and later runs of this one find it too. This module
only remembers notices: that a session was replaced, and what was lost with it.
"""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType

from typing_extensions import Unpack

from belljar._aio.client import AsyncClient
from belljar._aio.manager import AsyncKeyedSessions
from belljar._manager import ExecResult, ManagerConfig, ManagerOptions, Opened
from belljar._sync.client import Client
from belljar._sync.manager import KeyedSessions
from belljar.config import Config

__all__ = ["ExecResult", "ManagerConfig", "ManagerOptions", "Opened", "SessionManager"]


class SessionManager(KeyedSessions, AsyncKeyedSessions):
    """Gives each conversation its own sandbox, which is created when it is first used and found again later.

    >>> manager = SessionManager(session_storage="TMPFS", dataset_access="NONE")
    >>> manager.exec("conversation-7", "x = 41")
    >>> manager.exec("conversation-7", "x + 1").text
    '42'
    >>> manager.stop("conversation-7")

    The options are the fields of `ManagerConfig`: give such a `config`, or single fields as keywords, which override
    those of `config`. `client` and `async_client` are used instead of new clients.

    A live session keeps the options that it was created with. If they differ from those of the manager,
    `ExecResult.notice` says so, and the next session of this key (with `BIND`, on the same files) gets the new options.

    Methods whose names begin with `a`, such as `aexec`, are the same with `await`.
    """

    def __init__(
        self,
        config: ManagerConfig | None = None,
        *,
        client: Client | None = None,
        async_client: AsyncClient | None = None,
        **options: Unpack[ManagerOptions],
    ) -> None:
        super().__init__(replace(config or ManagerConfig(), **options), client, async_client)

    @classmethod
    def from_config(cls, config: Config, **options: Unpack[ManagerOptions]) -> SessionManager:
        """A manager with the settings that `Config` has read; `options` override them."""
        return cls(ManagerConfig.of_settings(config), **options)

    @property
    def client(self) -> Client:
        return self._client

    @property
    def async_client(self) -> AsyncClient:
        return self._async_client

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client.url!r}, {self.session_storage}, {self.dataset_access})"

    def close(self) -> None:
        """Closes the connections. The sessions go on."""
        self._client.close()

    async def aclose(self) -> None:
        """Closes the connections, including those of this event loop. The sessions go on."""
        self._client.close()
        await self._async_client.aclose()

    def __enter__(self) -> SessionManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
