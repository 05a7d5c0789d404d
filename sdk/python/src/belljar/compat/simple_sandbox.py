"""Bash commands in a sandbox that keeps its state between commands.

>>> with SandboxClient(server_url="http://127.0.0.1:8000") as sandbox:
...     print(sandbox.execute("ls -la")["output"])

Uses `POST /create_session`, `/execute` and `/cleanup`, which every Belljar server has.
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
    """The output of a command on both streams, in its order, and its exit code."""

    output: str
    exit_code: int


class SandboxClient:
    """A sandbox for bash commands, which keeps directory, variables and files from command to command.

    The server is `server_url`, else the one at `BELLJAR_URL`, else the local one. The end of the `with` block removes
    the sandbox; without such a block, call `create_session()` and `cleanup()`.
    """

    def __init__(self, server_url: str | None = None, *, api_key: str | None = None) -> None:
        self._client = Client(server_url, api_key=api_key)
        self.session_id: str | None = None

    def create_session(self) -> str:
        """Creates the sandbox if there is none yet, and returns its id."""
        if self.session_id is None:
            self.session_id = self._post("/create_session", {}, lambda response: str(response["session_id"]))
        return self.session_id

    def execute(self, command: str, timeout: float | None = None) -> Executed:
        """Runs a command, which may take `timeout` seconds (60 by default)."""
        if self.session_id is None:
            raise InvalidRequest("there is no sandbox yet", hint="use `with SandboxClient() as sandbox:`")
        body: dict[str, object] = {"session_id": self.session_id, "command": command}
        if timeout is not None:
            body["timeout"] = timeout
        # Commands of one sandbox run one after another, so this is an estimate.
        response_timeout = (timeout or DEFAULT_EXEC_TIMEOUT) + RUN_SLACK
        return self._post("/execute", body, _executed, response_timeout)

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
        # The caller gets the error from inside the block, not one from cleaning up.
        with _io.cleanup():
            self.close()

    def _post(
        self, path: str, body: dict[str, object], convert: Callable[[dict[str, object]], T], timeout: float = 60.0
    ) -> T:
        def parse(response: bytes) -> T:
            try:
                return convert(json.loads(response))
            except (ValueError, KeyError, TypeError) as error:
                raise ProtocolError(f"the response to {path} has an unexpected format") from error

        return self._client._do(Call("POST", path, parse, body=body, timeout=timeout))


def _executed(response: dict[str, object]) -> Executed:
    return {"output": str(response["output"]), "exit_code": int(str(response["exit_code"]))}
