"""LangChain's `ShellToolMiddleware`, with its shell in a sandbox.

>>> from langchain.agents import create_agent
>>> from langchain.agents.middleware import ShellToolMiddleware
>>> from belljar.shell_policy import BelljarExecutionPolicy
>>> agent = create_agent(model, middleware=[ShellToolMiddleware(execution_policy=BelljarExecutionPolicy())])

The middleware wants a process with pipes. It gets `belljar shell --stdio`, which passes on what comes and goes; the
shell itself runs in a session, and ends when that process does, however it does.
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
    # Where it is to be had from, though it is not among that module's own names.
    from langchain.agents.middleware.shell_tool import BaseExecutionPolicy  # type: ignore[attr-defined]
except ModuleNotFoundError as error:
    raise ImportError("belljar.shell_policy needs langchain: pip install 'langchain>=1'") from error

from belljar import local
from belljar._calls import AskedLimits
from belljar._sync.client import Client
from belljar._sync.session import Session
from belljar.errors import BelljarError

__all__ = ["BelljarExecutionPolicy"]

# Where the environment of the shell stands in that of the process here.
_VARIABLES = "SHELL_VARIABLES"

# Seconds a session that nobody stopped lives on after its last use.
_TTL = 3600


@dataclass
class BelljarExecutionPolicy(BaseExecutionPolicy):
    """Runs the shell in a Belljar session.

    With `session`, the session with this key, which stays. Without it, one for every workspace of
    the middleware, so for every run of the agent; its files are still there when the shell is
    started again after a command that took too long, and it ends with `close()`, when its
    workspace is gone and another shell starts, or an hour after its last use.

    The workspace on this machine is not to be seen inside: the shell begins in `/session`.
    """

    # The middleware waits for so long for a shell that is busy to leave by itself, which it does not.
    termination_timeout: float = 2.0
    session: str | None = None
    url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    limits: AskedLimits | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._client = Client(self.url, api_key=self.api_key)
        self._own: dict[Path, Session] = {}
        self._lock = threading.Lock()

    def spawn(self, *, workspace: Path, env: Mapping[str, str], command: Sequence[str]) -> subprocess.Popen[str]:
        """Starts the shell, and returns the process that stands for it."""
        session = self._session(Path(workspace))
        # What else is set for this program is not for that one, which may not know all of it.
        ours = {name: value for name, value in os.environ.items() if not name.startswith("BELLJAR_")}
        ours.update({"BELLJAR_URL": self._client.url, _VARIABLES: json.dumps(dict(env))})
        if self._client._target.api_key is not None:
            ours["BELLJAR_API_KEY"] = self._client._target.api_key
        # One word alone would be taken for a text for a shell.
        words = [shlex.quote(command[0])] if len(command) == 1 else list(command)
        return subprocess.Popen(
            [local.find_binary(), "shell", "--stdio", "--env-json", _VARIABLES, session.id, "--", *words],
            # Not where the agent is: a .env there is not for this.
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            bufsize=1,
            env=ours,
            # The middleware kills the whole group, which must not be the agent's.
            start_new_session=True,
        )

    def close(self) -> None:
        """Stops the sessions that were made for shells."""
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
        """The middleware removes a workspace of its own with the run that it was for, and tells nobody."""
        with self._lock:
            gone = [path for path in self._own if not path.exists()]
            abandoned = [self._own.pop(path) for path in gone]
        for session in abandoned:
            # If this fails, the session ends when its time to live is over.
            with suppress(BelljarError):
                session.stop()
