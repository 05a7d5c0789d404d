"""Calls the user's function that fetches a dataset, which may be synchronous or asynchronous."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import anyio.to_thread

from belljar._files import Source

#: `fetch_fn(dataset_id)`, or `fetch_fn(client, dataset_id)`, which may be a coroutine function: returns the dataset's
#: bytes, or a path or a binary file.
FetchFn = Callable[..., Source | Awaitable[Source]]


def with_client(fetch_fn: FetchFn, client: Any) -> FetchFn:
    """The function with the client as its argument, if there is one."""
    if client is None:
        return fetch_fn
    parameters: Mapping[str, inspect.Parameter] = {}
    with suppress(TypeError, ValueError):
        parameters = inspect.signature(fetch_fn).parameters
    if "client" in parameters and next(iter(parameters)) != "client":
        return lambda dataset_id: fetch_fn(dataset_id, client=client)
    return lambda dataset_id: fetch_fn(client, dataset_id)


def fetched(fetch: FetchFn, dataset_id: str) -> Source:
    content = fetch(dataset_id)
    if not inspect.isawaitable(content):
        return content

    async def wait() -> Source:
        return await content

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    # A synchronous tool was called from a coroutine: its event loop is busy, so another thread runs a second one.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, wait()).result()


async def afetched(fetch: FetchFn, dataset_id: str) -> Source:
    # In a thread, as the function may be synchronous and block.
    content = await anyio.to_thread.run_sync(fetch, dataset_id)
    return await content if inspect.isawaitable(content) else content
