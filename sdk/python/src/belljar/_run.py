"""`belljar.run`: runs code without a client or a session."""

from __future__ import annotations

import os
import threading
from typing import TypeVar

from typing_extensions import Unpack

from belljar import _settings, local
from belljar._aio import _io as aio
from belljar._aio.client import AsyncClient
from belljar._options import RunOptions
from belljar._sync import _io as sync
from belljar._sync.client import Client
from belljar.events import Output
from belljar.models import Result

C = TypeVar("C", Client, AsyncClient)

# Clients to reuse, by the settings that they were created with: the environment may change between two calls.
_clients: dict[object, Client] = {}
_async_clients: dict[object, AsyncClient] = {}
_lock = threading.Lock()
# A program rarely uses more servers than this; the oldest client is dropped.
_MAX_CLIENTS = 8


def run(code: str, *, on_output: sync.Callback[Output] | None = None, **options: Unpack[RunOptions]) -> Result:
    """Runs code in a new sandbox, which is removed afterwards.

    >>> belljar.run("1 + 1").text
    '2'
    >>> belljar.run("echo $((6 * 7))", language="bash", timeout=5).stdout
    '42\\n'

    Uses the server at `BELLJAR_URL`, or the local one. Code that fails raises no exception: see `Result.ok` and
    `Result.raise_for_error`. Files that the code leaves in `/work/artifacts` are in the result's `artifacts`.
    `on_output` is called with each `Stdout` and `Stderr` while the code runs. The other options are those of
    `RunOptions`.
    """
    return shared_client(_clients, Client).run(code, on_output=on_output, **options)


async def arun(code: str, *, on_output: aio.Callback[Output] | None = None, **options: Unpack[RunOptions]) -> Result:
    """The same as `run`, with `await`."""
    return await shared_client(_async_clients, AsyncClient).run(code, on_output=on_output, **options)


def default_client() -> Client:
    """The client that `run` uses."""
    return shared_client(_clients, Client)


def shared_client(clients: dict[object, C], kind: type[C]) -> C:
    """A client for the current settings, created once."""
    settings = _settings.read()
    server = tuple(settings.get(name) for name in ("BELLJAR_URL", "SANDBOX_API_URL", "BELLJAR_API_KEY"))
    directories = tuple(os.environ.get(name) for name in ("XDG_RUNTIME_DIR", "XDG_DATA_HOME", "HOME"))
    own = tuple(settings.get(name) for name in local.OWN)
    # Some of these settings may be paths relative to the current directory.
    key = (server, directories, own, os.getcwd() if any(own) else None)
    client = clients.get(key)
    if client is None:
        with _lock:
            client = clients.get(key)
            if client is None:
                client = clients[key] = kind()
                if len(clients) > _MAX_CLIENTS:
                    del clients[next(iter(clients))]
    return client
