"""The tools `select_dataset`, `list_datasets` and `export_datasets`."""

from __future__ import annotations

from typing import Annotated, Any

from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolRuntime
from pydantic import Field

from belljar.errors import InvalidRequest
from belljar.langgraph._aio import actions as aio
from belljar.langgraph._dataset_answers import plain_names
from belljar.langgraph._fetch import FetchFn, with_client
from belljar.langgraph._make_tool import Work, make_tool, work_in_session
from belljar.langgraph._sync import actions as sync
from belljar.langgraph._tool import NO_RUNTIME, SessionKeyFn, Sessions
from belljar.manager import SessionManager

__all__ = ["make_export_datasets_tool", "make_list_datasets_tool", "make_select_dataset_tool"]

_SELECT = """\
Loads a dataset into the sandbox of this conversation. Call this once for every dataset before code reads it; a \
dataset that is already loaded is not loaded again. The answer has the path to read it from, such as \
/session/data/sales.parquet for `pd.read_parquet`."""

_LIST = """\
Lists the datasets in the sandbox of this conversation: name, path, size, number of rows and columns. Use it before \
you write code that reads data, instead of guessing paths and columns."""

_EXPORT = """\
Gives files of /session/data to the user, such as datasets that code has changed or created. Each file is copied out \
of the sandbox under a name that contains the time, and the answer has a link to it that you can pass on. First save \
what you want to export in /session/data, with `df.to_parquet('/session/data/name.parquet')`."""


def make_select_dataset_tool(
    session_manager: SessionManager,
    fetch_fn: FetchFn | None = None,
    client: Any = None,
    session_key_fn: SessionKeyFn | None = None,
    *,
    name: str = "select_dataset",
    description: str | None = None,
) -> BaseTool:
    """Makes a tool with which a model loads datasets into its sandbox.

    >>> def fetch(dataset_id: str) -> bytes:
    ...     return requests.get(f"https://data.example.com/{dataset_id}.parquet").content
    >>> tool = make_select_dataset_tool(SessionManager(dataset_access="API"), fetch)

    `fetch_fn(dataset_id)` returns the bytes; it may be a coroutine function. With a `client` of your own it is called
    as `fetch_fn(client, dataset_id)`, or with `client=` if it has a parameter of that name. Without `fetch_fn` the
    server fetches the dataset from its own sources (`BELLJAR_DATASET_SOURCES`). An error of `fetch_fn` is an answer
    with status `FAILED`, and the next call tries again. Without a `session_key_fn`, all tools for datasets use the
    session of the manager's code tool.
    """
    if session_manager.dataset_access != "API":
        raise InvalidRequest(
            f"this tool needs dataset_access `API`, not `{session_manager.dataset_access}`",
            hint="create the SessionManager with dataset_access='API'",
        )
    sessions = Sessions(session_manager, session_key_fn, like_code_tool=True)
    fetch = None if fetch_fn is None else with_client(fetch_fn, client)

    def select_dataset(
        dataset_id: Annotated[str, Field(description="The name or id of the dataset.")],
        runtime: ToolRuntime = NO_RUNTIME,
    ) -> Work:
        return work_in_session(sessions, runtime, sync.select_dataset, aio.select_dataset, dataset_id, fetch=fetch)

    return make_tool(select_dataset, name=name, description=description or _SELECT)


def make_list_datasets_tool(
    session_manager: SessionManager,
    session_key_fn: SessionKeyFn | None = None,
    *,
    name: str = "list_datasets",
    description: str | None = None,
) -> BaseTool:
    """Makes a tool with which a model lists its datasets, in `/session/data` (`API`) or `/data` (`LOCAL_RO`)."""
    sessions = Sessions(session_manager, session_key_fn, like_code_tool=True)

    def list_datasets(runtime: ToolRuntime = NO_RUNTIME) -> Work:
        return work_in_session(sessions, runtime, sync.list_datasets, aio.list_datasets)

    return make_tool(list_datasets, name=name, description=description or _LIST)


def make_export_datasets_tool(
    session_manager: SessionManager,
    session_key_fn: SessionKeyFn | None = None,
    *,
    name: str = "export_datasets",
    description: str | None = None,
) -> BaseTool:
    """Makes a tool with which a model gives files of `/session/data` to the user. No export overwrites another."""
    sessions = Sessions(session_manager, session_key_fn, like_code_tool=True)

    def export_datasets(
        names: Annotated[
            list[str] | None,
            Field(description="Names of files in /session/data, such as 'sales.parquet'. All of them, if left out."),
        ] = None,
        runtime: ToolRuntime = NO_RUNTIME,
    ) -> Work:
        return work_in_session(sessions, runtime, sync.export_datasets, aio.export_datasets, plain_names(names))

    return make_tool(export_datasets, name=name, description=description or _EXPORT)
