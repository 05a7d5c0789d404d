"""`select_dataset`, `list_datasets` and `export_datasets`: what goes into a sandbox and comes out of it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

import anyio.to_thread
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolRuntime
from pydantic import Field

from belljar._aio.session import AsyncSession
from belljar._files import Source
from belljar._sync.session import Session
from belljar.errors import BelljarError, InvalidRequest
from belljar.langgraph._render import line_of, note, section, size_of
from belljar.langgraph._tool import NO_RUNTIME, Answer, SessionKeyFn, Sessions, make_tool, origin
from belljar.manager import Opened, SessionManager
from belljar.models import Dataset, DatasetList, Exports

__all__ = ["make_export_datasets_tool", "make_list_datasets_tool", "make_select_dataset_tool"]

#: `fetch_fn(dataset_id)`, or `fetch_fn(client, dataset_id)`, plain or to be awaited: the dataset's bytes, or
#: a path or a binary file with them.
FetchFn = Callable[..., Source | Awaitable[Source]]

_PARQUET = b"PAR1"
_MAX_LISTED = 100
_MAX_COLUMNS = 40

_SELECT = """\
Brings a dataset into the sandbox of this conversation and tells where it is. Call this once for every dataset before \
code reads it; one that is there already is not brought again. The answer has the path to read it from, such as \
/session/data/sales.parquet for `pd.read_parquet`."""

_LIST = """\
Lists the datasets in the sandbox of this conversation: name, path, size, number of rows and columns. Use it before \
you write code that reads data, instead of guessing paths and columns."""

_EXPORT = """\
Gives files of /session/data, such as datasets that code has changed or made, to the user: each is copied out of the \
sandbox under a name with the time in it, and the answer has a link to it that you can pass on. Save what you want to \
export in /session/data first, with `df.to_parquet('/session/data/name.parquet')`."""


def make_select_dataset_tool(
    session_manager: SessionManager,
    fetch_fn: FetchFn | None = None,
    client: Any = None,
    session_key_fn: SessionKeyFn | None = None,
    *,
    name: str = "select_dataset",
    description: str | None = None,
) -> BaseTool:
    """A tool with which a model brings datasets into its sandbox.

    >>> def fetch(dataset_id: str) -> bytes:
    ...     return requests.get(f"https://data.example.com/{dataset_id}.parquet").content
    >>> tool = make_select_dataset_tool(SessionManager(dataset_access="API"), fetch)

    `fetch_fn(dataset_id)` gives the bytes, plain or to be awaited; with a `client` of your own it is
    called as `fetch_fn(client, dataset_id)`, or with `client=` where it names a parameter so. Without
    it the server fetches, from its own sources (`BELLJAR_DATASET_SOURCES`). What `fetch_fn` raises is
    told to the model with status `FAILED`, and the next call tries again. Without a `session_key_fn`
    of its own this tool, like all for datasets, uses the session of the manager's code tool.
    """
    if session_manager.dataset_access != "API":
        raise InvalidRequest(
            f"datasets are brought into sessions with dataset_access `API`, not `{session_manager.dataset_access}`",
            hint="make the SessionManager with dataset_access='API'",
        )
    sessions = Sessions(session_manager, session_key_fn, where_code_is=True)
    fetch = None if fetch_fn is None else _with_client(fetch_fn, client)

    def select_dataset(
        dataset_id: Annotated[str, Field(description="The name or id of the dataset.")],
        runtime: ToolRuntime = NO_RUNTIME,
    ) -> Answer:
        def bring(opened: Opened[Session]) -> Answer:
            datasets = opened.session.datasets
            if fetch is None:
                return _selected(opened, dataset_id, datasets.stage(dataset_id))
            there = _find(datasets.list(), dataset_id)
            if there is not None:
                return _selected(opened, dataset_id, there, was_there=True)
            try:
                content = _fetched(fetch, dataset_id)
            except Exception as error:
                return _failed(opened, dataset_id, error)
            brought = datasets.upload(content, _name(dataset_id, content))
            # Asked once more, it is known with its columns.
            return _selected(opened, dataset_id, _find(datasets.list(), brought.name) or brought)

        return sessions.call(runtime, bring)

    async def aselect_dataset(
        dataset_id: Annotated[str, Field(description="The name or id of the dataset.")],
        runtime: ToolRuntime = NO_RUNTIME,
    ) -> Answer:
        async def bring(opened: Opened[AsyncSession]) -> Answer:
            datasets = opened.session.datasets
            if fetch is None:
                return _selected(opened, dataset_id, await datasets.stage(dataset_id))
            there = _find(await datasets.list(), dataset_id)
            if there is not None:
                return _selected(opened, dataset_id, there, was_there=True)
            try:
                content = await _afetched(fetch, dataset_id)
            except Exception as error:
                return _failed(opened, dataset_id, error)
            brought = await datasets.upload(content, _name(dataset_id, content))
            return _selected(opened, dataset_id, _find(await datasets.list(), brought.name) or brought)

        return await sessions.acall(runtime, bring)

    return make_tool(select_dataset, aselect_dataset, name=name, description=description or _SELECT)


def make_list_datasets_tool(
    session_manager: SessionManager,
    session_key_fn: SessionKeyFn | None = None,
    *,
    name: str = "list_datasets",
    description: str | None = None,
) -> BaseTool:
    """A tool with which a model sees its datasets: those in `/session/data` (`API`) or `/data` (`LOCAL_RO`)."""
    sessions = Sessions(session_manager, session_key_fn, where_code_is=True)

    def list_datasets(runtime: ToolRuntime = NO_RUNTIME) -> Answer:
        return sessions.call(runtime, lambda opened: _listed(opened, opened.session.datasets.list()))

    async def alist_datasets(runtime: ToolRuntime = NO_RUNTIME) -> Answer:
        async def show(opened: Opened[AsyncSession]) -> Answer:
            return _listed(opened, await opened.session.datasets.list())

        return await sessions.acall(runtime, show)

    return make_tool(list_datasets, alist_datasets, name=name, description=description or _LIST)


def make_export_datasets_tool(
    session_manager: SessionManager,
    session_key_fn: SessionKeyFn | None = None,
    *,
    name: str = "export_datasets",
    description: str | None = None,
) -> BaseTool:
    """A tool with which a model hands out files of `/session/data`, under names that never overwrite others."""
    sessions = Sessions(session_manager, session_key_fn, where_code_is=True)

    def export_datasets(
        names: Annotated[
            list[str] | None,
            Field(description="Names of files in /session/data, such as 'sales.parquet'. All of them, if left out."),
        ] = None,
        runtime: ToolRuntime = NO_RUNTIME,
    ) -> Answer:
        asked = _plain(names)
        return sessions.call(runtime, lambda opened: _exported(opened, opened.session.datasets.export(asked)))

    async def aexport_datasets(
        names: Annotated[
            list[str] | None,
            Field(description="Names of files in /session/data, such as 'sales.parquet'. All of them, if left out."),
        ] = None,
        runtime: ToolRuntime = NO_RUNTIME,
    ) -> Answer:
        async def export(opened: Opened[AsyncSession]) -> Answer:
            return _exported(opened, await opened.session.datasets.export(_plain(names)))

        return await sessions.acall(runtime, export)

    return make_tool(export_datasets, aexport_datasets, name=name, description=description or _EXPORT)


# Fetching.


def _with_client(fetch_fn: FetchFn, client: Any) -> FetchFn:
    if client is None:
        return fetch_fn
    try:
        parameters = inspect.signature(fetch_fn).parameters
    except (TypeError, ValueError):
        parameters = {}  # type: ignore[assignment]
    if "client" in parameters and next(iter(parameters)) != "client":
        return lambda dataset_id: fetch_fn(dataset_id, client=client)
    return lambda dataset_id: fetch_fn(client, dataset_id)


def _fetched(fetch: FetchFn, dataset_id: str) -> Source:
    content = fetch(dataset_id)
    if not inspect.isawaitable(content):
        return content

    async def wait() -> Source:
        return await content

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    # Somebody calls a synchronous tool from a coroutine: that loop is taken, so another one it is.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, wait()).result()


async def _afetched(fetch: FetchFn, dataset_id: str) -> Source:
    # Whether it blocks is known only afterwards, so it does so elsewhere.
    content = await anyio.to_thread.run_sync(fetch, dataset_id)
    return await content if inspect.isawaitable(content) else content


def _name(dataset_id: str, content: Source) -> str:
    is_parquet = isinstance(content, (bytes, bytearray)) and bytes(content[:4]) == _PARQUET
    return f"{dataset_id}.parquet" if is_parquet and not dataset_id.endswith(".parquet") else dataset_id


def _find(listing: DatasetList, dataset_id: str) -> Dataset | None:
    names = (dataset_id, f"{dataset_id}.parquet")
    return next((known for known in listing.datasets if known.name in names and known.status == "LOADED"), None)


def _plain(names: Sequence[str] | None) -> list[str] | None:
    """Names as the server wants them, where a model gave whole paths."""
    return [name.removeprefix("/session/data/") for name in names] if names else None


# Answers.


def _selected(opened: Opened[Any], dataset_id: str, dataset: Dataset, *, was_there: bool = False) -> Answer:
    if dataset.status == "FAILED":
        return _failed(opened, dataset_id, dataset.reason or "its source did not give it")
    how = "is there already" if was_there else "was loaded"
    text = f"Dataset `{dataset_id}` {how}: {_describe(dataset)}"
    artifact = {"status": dataset.status, "dataset": dataset.model_dump(mode="json"), **origin(opened)}
    return _joined(opened, text), artifact


def _failed(opened: Opened[Any], dataset_id: str, error: object) -> Answer:
    if isinstance(error, BelljarError):
        reason = error.message
    elif isinstance(error, Exception):
        reason = f"{type(error).__name__}: {error}"
    else:
        reason = str(error)
    artifact = {"status": "FAILED", "dataset": None, "message": reason, **origin(opened)}
    return _joined(opened, f"Dataset `{dataset_id}` could not be loaded: {reason}"), artifact


def _listed(opened: Opened[Any], listing: DatasetList) -> Answer:
    lines = [f"- {_describe(dataset)}" for dataset in listing.datasets[:_MAX_LISTED]]
    more = listing.more + max(0, len(listing.datasets) - _MAX_LISTED)
    if more:
        lines.append(f"- and {more} more")
    where = {"LOCAL_RO": " in /data", "API": " in /session/data"}.get(listing.access, "")
    nothing = f"There are no datasets{where} yet." if where else listing.message or "There are no datasets."
    text = f"Datasets{where}:\n" + "\n".join(lines) if lines else nothing
    return _joined(opened, text), {"status": "ok", **listing.model_dump(mode="json"), **origin(opened)}


def _exported(opened: Opened[Any], exports: Exports) -> Answer:
    text = "\n".join(f"- {line_of(export)}" for export in exports.exports)
    refused = "\n".join(f"- {refusal.path}: {refusal.reason}" for refusal in exports.refused)
    said = section("exported", text) or "Nothing was exported: /session/data has no such files."
    whole = "\n".join(part for part in (said, section("NOT exported", refused)) if part)
    artifact = {
        "status": "error" if exports.refused else "ok",
        **exports.model_dump(mode="json"),
        "artifact_map": {export.path: export.host_path for export in exports.exports},
        **origin(opened),
    }
    return _joined(opened, whole), artifact


def _describe(dataset: Dataset) -> str:
    facts = [size_of(dataset.size)] if dataset.size is not None else []
    if dataset.rows is not None:
        facts.append(f"{dataset.rows} row{'s' if dataset.rows != 1 else ''}")
    if dataset.modified is not None:
        facts.append(f"modified {dataset.modified:%Y-%m-%d %H:%M:%S} UTC")
    if dataset.status != "LOADED":
        facts.append(dataset.status + (f" ({dataset.reason})" if dataset.reason else ""))
    columns = list(map(str, dataset.columns or []))
    shown = ", ".join(columns[:_MAX_COLUMNS]) + (", ..." if len(columns) > _MAX_COLUMNS else "")
    return f"{dataset.path} ({', '.join(facts)})" + (f"; columns: {shown}" if shown else "")


def _joined(opened: Opened[Any], text: str) -> str:
    return "\n".join(part for part in (note(opened.notice), text) if part)
