"""A sandbox is where its graph is."""

from __future__ import annotations

import os
from typing import Any

import pytest
from agents import ASK, agent, calls, code, thread, tool_messages
from servers import Server

from belljar import SessionManager
from belljar.langgraph import make_code_sandbox_tool
from belljar.toolkit import BelljarToolkit


@pytest.fixture
def manager(server: Server) -> SessionManager:
    return SessionManager(url=server.url, key_prefix=f"{os.urandom(4).hex()}-", checkpoints=True)


def after(graph: Any, name: str, answers: int) -> Any:
    """The first state in which tools had answered so often."""
    states = [state for state in graph.get_state_history(thread(name)) if state.next]
    found = [state for state in states if len(tool_messages(state.values)) == answers]
    return found[0].config


def test_a_thread_that_goes_back_finds_what_was_there(manager: SessionManager) -> None:
    script: list[Any] = [code("x = 1"), code("x = 2"), code("x = 3"), "done"]
    script += [code("print(x)"), "so", code("print(x)"), "so"]
    graph = agent([make_code_sandbox_tool(manager)], *script)
    graph.invoke(ASK, thread("t"))
    end = graph.get_state(thread("t")).config
    said = graph.invoke(ASK, after(graph, "t", 1))
    assert tool_messages(said)[-1].text == "1"
    said = graph.invoke(ASK, end)
    assert tool_messages(said)[-1].text == "3"


def test_the_beginning_is_a_point_too(manager: SessionManager) -> None:
    graph = agent([make_code_sandbox_tool(manager)], code("x = 1"), "done", code("print('x' in globals())"), "done")
    graph.invoke(ASK, thread("t"))
    first = [state for state in graph.get_state_history(thread("t"))][-2].config
    said = graph.invoke(ASK, first)
    assert tool_messages(said)[-1].text == "False"


async def test_calls_at_once_do_not_undo_each_other(manager: SessionManager) -> None:
    both = calls(
        ("write_file", {"path": "a", "content": "1"}),
        ("execute_python_script", {"code": "y = 1"}),
        ("execute_shell", {"command": "echo > b"}),
    )
    look = calls(("execute_python_script", {"code": "import os; print(y, sorted(os.listdir('.')))"}))
    script: list[Any] = [both, look, "done", look, "done"]
    graph = agent(BelljarToolkit(session_manager=manager).get_tools(), *script)
    said = await graph.ainvoke(ASK, thread("t"))
    seen = "1 ['a', 'artifacts', 'b', 'data']"
    assert tool_messages(said)[-1].text == seen
    said = await graph.ainvoke(ASK, after(graph, "t", 3))
    assert tool_messages(said)[-1].text == seen


def test_a_point_that_is_gone_is_said_to_be(server: Server) -> None:
    manager = SessionManager(url=server.url, key_prefix=f"{os.urandom(4).hex()}-", checkpoints={"max": 1})
    graph = agent([make_code_sandbox_tool(manager)], code("x = 1"), code("x = 2"), "done", code("print(x)"), "done")
    graph.invoke(ASK, thread("t"))
    said = graph.invoke(ASK, after(graph, "t", 1))
    assert "not kept any more" in tool_messages(said)[-1].text
    assert "2" in tool_messages(said)[-1].text
