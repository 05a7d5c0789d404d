"""Datasets that a model selects, lists and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from agents import ainvoke, invoke
from servers import Server

from belljar import (
    InvalidRequest,
    SessionManager,
    make_code_sandbox_tool,
    make_export_datasets_tool,
    make_list_datasets_tool,
    make_select_dataset_tool,
)

SALES = b"region,units\nnorth,3\n"


class Api:
    """A user's own client."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def get(self, dataset_id: str) -> bytes:
        self.asked.append(dataset_id)
        if dataset_id == "secret":
            raise PermissionError("not for you")
        return SALES


def fetch(client: Api, dataset_id: str) -> bytes:
    return client.get(dataset_id)


async def afetch(client: Api, dataset_id: str) -> bytes:
    return client.get(dataset_id)


def fetch_by_name(dataset_id: str, *, client: Api) -> bytes:
    return client.get(dataset_id)


@pytest.mark.parametrize("function", [fetch, afetch, fetch_by_name])
async def test_with_a_client_of_ones_own(manager: SessionManager, function: Any) -> None:
    api = Api()
    tool = make_select_dataset_tool(manager, function, client=api)
    loaded = await ainvoke(tool, dataset_id="sales.csv")
    assert loaded.text.startswith("Dataset `sales.csv` was loaded: /session/data/sales.csv (21 bytes, 1 row,")
    assert loaded.artifact["status"] == "LOADED"
    again = invoke(tool, dataset_id="sales.csv")
    assert "is there already" in again.text
    assert api.asked == ["sales.csv"], "it is not fetched twice"

    failed = invoke(tool, dataset_id="secret")
    assert failed.text == "Dataset `secret` could not be loaded: PermissionError: not for you"
    assert failed.artifact["status"] == "FAILED"
    invoke(tool, dataset_id="secret")
    assert api.asked == ["sales.csv", "secret", "secret"], "what failed is tried again"
    await manager.aclose()


def test_what_is_there_and_what_comes_out(manager: SessionManager) -> None:
    code, listing, export = (
        make(manager, session_key_fn=lambda: "mine")
        for make in (make_code_sandbox_tool, make_list_datasets_tool, make_export_datasets_tool)
    )
    assert invoke(listing).text == "There are no datasets in /session/data yet."
    assert "Nothing was exported" in invoke(export).text
    invoke(code, code="open('/session/data/made.csv', 'w').write('x,y\\n1,2\\n3,4\\n'); None")
    assert "/session/data/made.csv (12 bytes, 2 rows" in invoke(listing).text
    assert invoke(listing).text.endswith("columns: x, y")

    exported = invoke(export, names=["/session/data/made.csv", "nope.csv"])
    assert exported.text.startswith("[exported]\n- made.csv (12 bytes, text/csv): ")
    assert "[NOT exported]\n- /session/data/nope.csv" in exported.text
    [(inside, outside)] = exported.artifact["artifact_map"].items()
    assert inside == "/session/data/made.csv"
    assert Path(outside).read_text() == "x,y\n1,2\n3,4\n"
    assert Path(outside).name != "made.csv", "the time is in its name"


def test_parquet_gets_its_suffix(manager: SessionManager) -> None:
    tool = make_select_dataset_tool(manager, lambda _: b"PAR1 and so on")
    assert "/session/data/sales.parquet" in invoke(tool, dataset_id="sales").text
    assert "is there already" in invoke(tool, dataset_id="sales").text


def test_sessions_without_datasets(server: Server) -> None:
    manager = SessionManager(dataset_access="NONE", url=server.url)
    assert "no datasets" in invoke(make_list_datasets_tool(manager)).text
    with pytest.raises(InvalidRequest, match="dataset_access `API`, not `NONE`"):
        make_select_dataset_tool(manager, lambda _: SALES)
