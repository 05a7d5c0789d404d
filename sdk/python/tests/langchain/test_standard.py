"""LangChain's own tests for tools, over every tool there is."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langchain_tests.integration_tests import ToolsIntegrationTests
from langchain_tests.unit_tests import ToolsUnitTests
from servers import Server

from belljar import (
    BelljarToolkit,
    SessionManager,
    make_code_sandbox_tool,
    make_export_datasets_tool,
    make_list_datasets_tool,
    make_select_dataset_tool,
)

EXAMPLES: dict[str, dict[str, Any]] = {
    "code_sandbox": {"code": "print(6 * 7)"},
    "code_once": {"code": "print(6 * 7)"},
    "code_seen": {"code": "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"},
    "select_dataset": {"dataset_id": "sales.csv"},
    "list_datasets": {},
    "export_datasets": {"names": ["sales.csv"]},
    "execute_shell": {"command": "echo hello"},
    "execute_python_script": {"code": "6 * 7"},
    "list_files": {"path": "."},
    "read_file": {"path": "/etc/passwd"},
    "write_file": {"path": "notes.txt", "content": "hello"},
    "delete_file": {"path": "notes.txt"},
    "make_directory": {"path": "src/deep"},
    "browser_tool": {"task": "say hello"},
    "screenshot_browser": {"url": "about:blank"},
}


def tools(manager: SessionManager) -> dict[str, BaseTool]:
    made = [
        make_code_sandbox_tool(manager),
        make_code_sandbox_tool(manager, ephemeral=True, name="code_once"),
        make_code_sandbox_tool(manager, images=True, name="code_seen"),
        make_select_dataset_tool(manager, lambda dataset_id: b"x,y\n1,2\n"),
        make_list_datasets_tool(manager),
        make_export_datasets_tool(manager),
        *BelljarToolkit(session_manager=manager).get_tools(),
    ]
    return {tool.name: tool for tool in made}


@pytest.fixture(scope="module")
def made(server: Server) -> dict[str, BaseTool]:
    return tools(SessionManager(dataset_access="API", url=server.url))


class Tools:
    """The tool under test: each of them, one after the other."""

    name: str
    made: dict[str, BaseTool]

    @pytest.fixture(autouse=True, params=EXAMPLES)
    def under_test(self, request: pytest.FixtureRequest, made: dict[str, BaseTool]) -> None:
        self.name, self.made = request.param, made

    @property
    def tool_constructor(self) -> BaseTool:
        return self.made[self.name]

    @property
    def tool_invoke_params_example(self) -> dict[str, Any]:
        return EXAMPLES[self.name]


class TestUnit(Tools, ToolsUnitTests):
    def test_models_see_what_they_need(self, tool: BaseTool) -> None:
        shown = convert_to_openai_tool(tool)["function"]
        properties = shown["parameters"].get("properties", {})
        assert "runtime" not in properties
        assert set(EXAMPLES[self.name]) <= set(properties)
        assert len(shown["description"]) > 100
        assert all(len(about["description"]) > 10 for about in properties.values())


class TestIntegration(Tools, ToolsIntegrationTests):
    pass


def test_none_is_left_out(made: dict[str, BaseTool]) -> None:
    assert set(made) == set(EXAMPLES)
