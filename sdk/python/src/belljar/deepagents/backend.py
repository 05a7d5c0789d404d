"""`BelljarSandbox`: runs the commands of a deep agent and holds its files.

Every call decides which session it uses, so that one backend serves all conversations:

```text
  BelljarSandbox()                  a session of its own, which close() stops
  BelljarSandbox("build")           the session with this key, which any program finds again
  BelljarSandbox(session)           this session
  BelljarSandbox(per_thread=True)   one session for every `thread_id` of LangGraph
```

A session that has ended is never replaced without a notice: the first command in the new one begins with it. A session
that was given to the backend is not replaced at all.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import Any

from deepagents.backends.sandbox import BaseSandbox
from typing_extensions import Unpack

from belljar._aio.session import AsyncSession
from belljar._options import SessionOptions, checked
from belljar._sync.session import Session
from belljar.deepagents._aio.sandbox import AsyncSandboxCalls
from belljar.deepagents._state import internal_commands
from belljar.deepagents._sync.sandbox import SandboxCalls

__all__ = ["BelljarSandbox"]

# Seconds that a command may take by default.
DEFAULT_TIMEOUT = 120
# How many bytes of output an agent gets; longer output is written to a file inside and returned in part.
MAX_INLINE = 1 << 20


class BelljarSandbox(SandboxCalls, AsyncSandboxCalls, BaseSandbox):
    """A sandbox for deep agents.

    >>> with BelljarSandbox() as backend:
    ...     agent = create_deep_agent(model=model, backend=backend)

    `session` is a session, or the key of one. With `per_thread` every conversation has its own session, with the key
    `KEY::THREAD_ID`. `timeout` is how many seconds a command may take by default. Output of more than `max_inline`
    bytes is written to a file inside. With `stream_output`, commands send their output while they run, in LangGraph's
    stream mode `custom`, as `{"type": "belljar.output", "sandbox": id, "text": text}`. The other options are those of
    `SessionOptions`, for sessions that the backend creates.

    Methods whose names begin with `a`, such as `aexecute`, are the same with `await`.
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
        **options: Unpack[SessionOptions],
    ) -> None:
        checked(options, SessionOptions)
        super().__init__(
            session,
            per_thread=per_thread,
            url=url,
            api_key=api_key,
            timeout=timeout,
            max_inline=max_inline,
            stream_output=stream_output,
            options=options,
        )

    def session(self) -> Session:
        """The session of this conversation."""
        return Session(self._client, self._open())

    def close(self) -> None:
        """Closes the connections, and stops the session if it belongs to this backend alone."""
        try:
            if self._is_own and self._key in self._known:
                self.session().stop()
        finally:
            self._client.close()

    async def aclose(self) -> None:
        """The same as `close`, with `await`."""
        try:
            if self._is_own and self._key in self._known:
                await AsyncSession(self._async_client, await self._aopen()).stop()
        finally:
            self._client.close()
            await self._async_client.aclose()

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


def _with_internal_commands(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method, with its commands marked as internal."""
    if inspect.iscoroutinefunction(method):

        @functools.wraps(method)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with internal_commands():
                return await method(*args, **kwargs)

        return awaited

    @functools.wraps(method)
    def called(*args: Any, **kwargs: Any) -> Any:
        with internal_commands():
            return method(*args, **kwargs)

    return called


# All methods that this version of deepagents implements with commands: `ls`, `read`, `grep`, and later ones.
for _name in dir(BaseSandbox):
    _method = inspect.getattr_static(BaseSandbox, _name)
    _is_inherited = inspect.getattr_static(BelljarSandbox, _name) is _method
    if not _name.startswith("_") and inspect.isfunction(_method) and "execute" not in _name and _is_inherited:
        setattr(BelljarSandbox, _name, _with_internal_commands(_method))
