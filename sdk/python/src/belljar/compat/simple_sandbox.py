"""Bash commands in a sandbox of their own, that remember each other.

>>> with SandboxClient(server_url="http://127.0.0.1:8000") as sandbox:
...     print(sandbox.execute("ls -la")["output"])

Speaks `POST /create_session`, `/execute` and `/cleanup`, which any Belljar server answers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from types import TracebackType
from typing import TypedDict, TypeVar

from belljar._calls import DEFAULT_EXEC_TIMEOUT, RUN_SLACK, Call
from belljar._sync import _io
from belljar._sync.client import Client
from belljar.errors import InvalidRequest, ProtocolError

__all__ = ["Executed", "SandboxClient"]

T = TypeVar("T")


class Executed(TypedDict):
    """What a command printed on both streams, in the order it came, and how it ended."""

    output: str
    exit_code: int


class SandboxClient:
    """A sandbox for bash commands; directory, variables and files stay from one to the next.

    The server is `server_url`, else the one that `BELLJAR_URL` names, else the local one. Leaving
    the `with` block removes the sandbox; without one, call `create_session()` and `cleanup()`.
    """

    def __init__(self, server_url: str | None = None, *, api_key: str | None = None) -> None:
        self._client = Client(server_url, api_key=api_key)
        self.session_id: str | None = None

    def create_session(self) -> str:
        """Makes the sandbox, if there is none yet, and returns its id."""
        if self.session_id is None:
            self.session_id = self._post("/create_session", {}, lambda told: str(told["session_id"]))
        return self.session_id

    def execute(self, command: str, timeout: float | None = None) -> Executed:
        """Runs a command, which may take `timeout` seconds (60 unless told)."""
        if self.session_id is None:
            raise InvalidRequest("there is no sandbox yet", hint="use `with SandboxClient() as sandbox:`")
        body: dict[str, object] = {"session_id": self.session_id, "command": command}
        if timeout is not None:
            body["timeout"] = timeout
        # Commands of one sandbox wait for each other, so this is a guess; nobody waits for ever.
        patience = (timeout or DEFAULT_EXEC_TIMEOUT) + RUN_SLACK
        return self._post("/execute", body, _executed, patience)

    def cleanup(self) -> None:
        """Removes the sandbox with everything in it."""
        session_id, self.session_id = self.session_id, None
        if session_id is not None:
            self._post("/cleanup", {"session_id": session_id}, lambda _: None)

    def close(self) -> None:
        """Removes the sandbox, and closes the connections."""
        try:
            self.cleanup()
        finally:
            self._client.close()

    def __enter__(self) -> SandboxClient:
        self.create_session()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # What went wrong inside matters more than whether we could clean up after it.
        with _io.last_words():
            self.close()

    def _post(
        self, path: str, body: dict[str, object], understand: Callable[[dict[str, object]], T], patience: float = 60.0
    ) -> T:
        def parse(told: bytes) -> T:
            try:
                return understand(json.loads(told))
            except (ValueError, KeyError, TypeError) as error:
                raise ProtocolError(f"the server answered {path} in an unknown way") from error

        return self._client._do(Call("POST", path, parse, body=body, timeout=patience))


def _executed(told: dict[str, object]) -> Executed:
    return {"output": str(told["output"]), "exit_code": int(str(told["exit_code"]))}
