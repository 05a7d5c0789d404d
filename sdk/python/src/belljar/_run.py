"""`belljar.run`: no client, no session, no server to think of."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import TypeVar

from belljar import _settings, local
from belljar._aio import _io as aio
from belljar._aio.client import AsyncClient
from belljar._calls import Access, AskedLimits, AskedVolumes, Language, Network, Size
from belljar._sync import _io as sync
from belljar._sync.client import Client
from belljar.events import Output
from belljar.models import Result

C = TypeVar("C", Client, AsyncClient)

# Clients to keep, by what they were made for: the environment may change between two calls.
_clients: dict[object, Client] = {}
_async_clients: dict[object, AsyncClient] = {}
_lock = threading.Lock()
# More different servers than this are not used by one program; the oldest is let go.
_MAX_CLIENTS = 8


def run(
    code: str,
    *,
    language: Language = "python",
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    limits: AskedLimits | None = None,
    datasets: Access | None = None,
    image: str | None = None,
    network: Network | None = None,
    volumes: AskedVolumes | None = None,
    max_output: Size | None = None,
    on_output: sync.Callback[Output] | None = None,
) -> Result:
    """Runs code in a fresh sandbox, which is gone afterwards.

    >>> belljar.run("1 + 1").text
    '2'
    >>> belljar.run("echo $((6 * 7))", language="bash", timeout=5).stdout
    '42\\n'

    Uses the server that `BELLJAR_URL` names, or the local one. Code that fails is no exception: see
    `Result.ok` and `Result.raise_for_error`. Files that it leaves in `/work/artifacts` are in the
    result's `artifacts`.
    """
    return _kept(_clients, Client).run(
        code,
        language=language,
        timeout=timeout,
        env=env,
        limits=limits,
        datasets=datasets,
        image=image,
        network=network,
        volumes=volumes,
        max_output=max_output,
        on_output=on_output,
    )


async def arun(
    code: str,
    *,
    language: Language = "python",
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    limits: AskedLimits | None = None,
    datasets: Access | None = None,
    image: str | None = None,
    network: Network | None = None,
    volumes: AskedVolumes | None = None,
    max_output: Size | None = None,
    on_output: aio.Callback[Output] | None = None,
) -> Result:
    """The same as `run`, to be awaited."""
    return await _kept(_async_clients, AsyncClient).run(
        code,
        language=language,
        timeout=timeout,
        env=env,
        limits=limits,
        datasets=datasets,
        image=image,
        network=network,
        volumes=volumes,
        max_output=max_output,
        on_output=on_output,
    )


def _kept(clients: dict[object, C], kind: type[C]) -> C:
    settings = _settings.read()
    named = tuple(settings.get(name) for name in ("BELLJAR_URL", "SANDBOX_API_URL", "BELLJAR_API_KEY"))
    where = tuple(os.environ.get(name) for name in ("XDG_RUNTIME_DIR", "XDG_DATA_HOME", "HOME"))
    own = tuple(settings.get(name) for name in local.OWN)
    # Paths among these are meant from where we are.
    key = (named, where, own, os.getcwd() if any(own) else None)
    client = clients.get(key)
    if client is None:
        with _lock:
            client = clients.get(key)
            if client is None:
                client = clients[key] = kind()
                if len(clients) > _MAX_CLIENTS:
                    del clients[next(iter(clients))]
    return client
