"""LangChain's `ShellToolMiddleware`, with its shell in a sandbox.

>>> from langchain.agents import create_agent
>>> from langchain.agents.middleware import ShellToolMiddleware
>>> from belljar.shell_policy import BelljarExecutionPolicy
>>> agent = create_agent(model, middleware=[ShellToolMiddleware(execution_policy=BelljarExecutionPolicy())])

The middleware needs a process with pipes. It gets `belljar shell --stdio`, which connects the pipes to a shell in a
session. The shell ends when that process ends, for whatever reason.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

try:
    # This module is the only one that has it, though it does not export it.
    from langchain.agents.middleware.shell_tool import BaseExecutionPolicy  # type: ignore[attr-defined]
except ModuleNotFoundError as error:
    raise ImportError("belljar.shell_policy needs langchain: pip install 'langchain>=1'") from error

from belljar import local
from belljar._options import LimitOptions
from belljar._sync.client import Client
from belljar._sync.session import Session
from belljar.errors import BelljarError

__all__ = ["BelljarExecutionPolicy"]

# The variable of the local process that holds the environment of the shell, as JSON.
_VARIABLES = "SHELL_VARIABLES"

# Seconds that a session lives after its last use.
_TTL = 3600


@dataclass
class BelljarExecutionPolicy(BaseExecutionPolicy):
    """Runs the shell in a Belljar session.

    `session` is the key of a session, which is kept. Without it, every workspace of the middleware, that is every run
    of the agent, has its own session. When the shell is restarted after a command that took too long, the files are
    still there. The session ends with `close()`, when another shell starts after the workspace was removed, or an hour
    after its last use.

    The workspace on this machine is not visible inside: the shell starts in `/session`.
    """

    # Seconds that the middleware waits for a busy shell to exit, which it never does.
    termination_timeout: float = 2.0
    session: str | None = None
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    limits: LimitOptions | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._client = Client(self.url, api_key=self.api_key)
        self._own: dict[Path, Session] = {}
        self._lock = threading.Lock()

    def spawn(self, *, workspace: Path, env: Mapping[str, str], command: Sequence[str]) -> subprocess.Popen[str]:
        """Starts the shell, and returns the local process that is connected to it."""
        session = self._session(Path(workspace))
        # Other settings of this program are not for `belljar`, which may not know them.
        ours = {name: value for name, value in os.environ.items() if not name.startswith("BELLJAR_")}
        ours.update({"BELLJAR_URL": self._client.url, _VARIABLES: json.dumps(dict(env))})
        if self._client._target.api_key is not None:
            ours["BELLJAR_API_KEY"] = self._client._target.api_key
        # A single word would be taken as text for a shell.
        words = [shlex.quote(command[0])] if len(command) == 1 else list(command)
        return subprocess.Popen(
            [local.find_binary(), "shell", "--stdio", "--env-json", _VARIABLES, session.id, "--", *words],
            # Not the current directory, whose .env is not for this process.
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            bufsize=1,
            env=ours,
            # The middleware kills the process group, which must not be the agent's.
            start_new_session=True,
        )

    def close(self) -> None:
        """Stops the sessions that were created for shells."""
        with self._lock:
            own, self._own = self._own, {}
        for session in own.values():
            session.stop()
        self._client.close()

    def __enter__(self) -> BelljarExecutionPolicy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _session(self, workspace: Path) -> Session:
        if self.session is not None:
            return self._client.session(self.session, limits=self.limits)
        self._stop_abandoned()
        with self._lock:
            found = self._own.get(workspace)
        if found is not None and found.is_alive():
            return found
        made = self._client.session(limits=self.limits, ttl=_TTL)
        with self._lock:
            self._own[workspace] = made
        return made

    def _stop_abandoned(self) -> None:
        """Stops sessions whose workspace the middleware has removed at the end of a run."""
        with self._lock:
            gone = [path for path in self._own if not path.exists()]
            abandoned = [self._own.pop(path) for path in gone]
        for session in abandoned:
            # If this fails, the session ends when its time to live is over.
            with suppress(BelljarError):
                session.stop()
