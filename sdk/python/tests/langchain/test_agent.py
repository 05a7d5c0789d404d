"""Agents at work: a graph, a scripted model, real sandboxes."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agents import ASK, agent, calls, code, invoke, thread, tool_messages
from langchain_core.messages import ToolMessage
from servers import CLUSTER, Server, content_of

from belljar import (
    BelljarToolkit,
    Client,
    SandboxFailure,
    SessionManager,
    Stdout,
    make_code_sandbox_tool,
    make_select_dataset_tool,
)
from belljar.langgraph._tool import live

SALES = b"region,units\nnorth,3\nsouth,39\n"


def test_an_analysis(manager: SessionManager) -> None:
    tools = [make_code_sandbox_tool(manager, images=True), make_select_dataset_tool(manager, lambda _: SALES)]
    analyst = agent(
        tools,
        calls(("select_dataset", {"dataset_id": "sales.csv"})),
        code("import csv\nrows = list(csv.DictReader(open('/session/data/sales.csv')))\nlen(rows)"),
        code("total = sum(int(row['units']) for row in rows)\ntotal"),
        code(
            "import matplotlib.pyplot as plt\n"
            "plt.bar([row['region'] for row in rows], [int(row['units']) for row in rows])\n"
            "plt.title(f'{total} units')\n"
            "plt.savefig('/session/artifacts/units.png')\n"
            "plt.close()"
        ),
        "42 units were sold: {link}",
    )
    state = analyst.invoke(ASK, thread("analysis"))
    selected, loaded, summed, plotted = tool_messages(state)
    assert "/session/data/sales.csv" in selected.text
    assert "columns: region, units" in selected.text
    assert (loaded.text, summed.text) == ("[result]\n2", "[result]\n42")

    # The model sees the picture, and passes the link on, which leads to it.
    kinds = [block["type"] for block in plotted.content_blocks]
    assert kinds == ["text", "image"]
    [artifact] = plotted.artifact["artifacts"]
    assert "units.png" in plotted.text
    assert "image/png" in plotted.text
    assert plotted.artifact["artifact_map"]["/session/artifacts/units.png"] == artifact["host_path"]
    link = state["messages"][-1].text.removeprefix("42 units were sold: ")
    assert content_of(link).startswith(b"\x89PNG")


def test_threads_are_apart(manager: SessionManager) -> None:
    tool = make_code_sandbox_tool(manager)
    count = "x = 1 if 'x' not in globals() else x + 1\nx"
    counter = agent([tool], *[message for _ in range(4) for message in (code(count), "done")])
    for name, expected in [("a", 1), ("a", 2), ("b", 1), ("a", 3)]:
        state = counter.invoke(ASK, thread(name))
        assert tool_messages(state)[-1].text == f"[result]\n{expected}"
    keys = {message.artifact["session_key"] for message in tool_messages(state)}
    assert keys == {"a"}


def test_calls_at_the_same_time(manager: SessionManager) -> None:
    toolkit = BelljarToolkit(session_manager=manager).get_tools()
    wait = "touch {me}; while [ ! -e {other} ]; do sleep 0.02; done; echo {me} has seen {other}"
    busy = agent(
        toolkit,
        calls(
            ("execute_shell", {"command": wait.format(me="a", other="b")}),
            ("execute_shell", {"command": wait.format(me="b", other="a")}),
            ("execute_python_script", {"code": "x = 41"}),
            ("write_file", {"path": "c", "content": "c"}),
        ),
        calls(("execute_python_script", {"code": "x + 1"})),
        "done",
    )
    state = busy.invoke(ASK, thread("parallel"))
    said = [message.text for message in tool_messages(state)]
    assert said[:2] == ["a has seen b", "b has seen a"], "each waits for the other"
    assert said[3:] == ["Wrote c (1 bytes).", "[result]\n42"]
    assert len({message.artifact["session_id"] for message in tool_messages(state)}) == 1


async def test_the_same_with_await(manager: SessionManager) -> None:
    runner = agent([make_code_sandbox_tool(manager)], code("x = 20"), code("x * 2 + 2"), "done")
    state = await runner.ainvoke(ASK, thread("async"))
    assert tool_messages(state)[-1].text == "[result]\n42"
    assert state["messages"][-1].text == "done"
    await manager.aclose()


async def test_many_conversations_at_once(manager: SessionManager) -> None:
    tool = make_code_sandbox_tool(manager)

    async def talk(number: int) -> str:
        talker = agent([tool], code(f"x = {number}"), code("import time; time.sleep(0.2); x"), "done")
        state = await talker.ainvoke(ASK, thread(f"many-{number}"))
        return tool_messages(state)[-1].text

    assert await asyncio.gather(*map(talk, range(12))) == [f"[result]\n{number}" for number in range(12)]
    await manager.aclose()


SLOWLY = "import time\nfor i in range(3):\n    print(i, flush=True)\n    time.sleep(0.1)"


# LangGraph passes tools' output on while they run only if something else is streamed too.
LIVE = ["tools", "custom"]


def test_output_is_seen_while_it_comes(manager: SessionManager) -> None:
    runner = agent([make_code_sandbox_tool(manager)], code(SLOWLY), "done")
    seen = [
        (time.monotonic(), event["delta"])
        for _, event in runner.stream(ASK, thread("live"), stream_mode=LIVE)
        if event.get("event") == "tool-output-delta"
    ]
    assert "".join(text for _, text in seen) == "0\n1\n2\n"
    assert seen[-1][0] - seen[0][0] > 0.1, "not all at once"


async def test_output_is_seen_while_it_comes_with_await(manager: SessionManager) -> None:
    runner = agent([make_code_sandbox_tool(manager)], code(SLOWLY), "done")
    seen = []
    async for _, event in runner.astream(ASK, thread("alive"), stream_mode=LIVE):
        if event.get("event") == "tool-output-delta":
            seen.append((time.monotonic(), event["delta"]))
    assert "".join(text for _, text in seen) == "0\n1\n2\n"
    assert seen[-1][0] - seen[0][0] > 0.1, "not all at once"
    await manager.aclose()


def test_older_graphs_have_a_stream_writer() -> None:
    heard: list[str] = []
    tell = live(SimpleNamespace(stream_writer=heard.append))
    assert tell is not None
    assert live(None) is None
    tell(Stdout("hi"))
    assert heard == ["hi"]


def test_a_server_that_is_killed_between_calls(mortal: Server) -> None:
    manager = SessionManager(url=mortal.url)
    tool = make_code_sandbox_tool(manager)
    runner = agent([tool], code("x = 41"), "one", code("x + 1"), "two")
    runner.invoke(ASK, thread("survivor"))
    mortal.kill()
    # It comes back while the tool is being called.
    back = threading.Timer(0.5, mortal.start)
    back.start()
    state = runner.invoke(ASK, thread("survivor"))
    back.join()
    assert tool_messages(state)[-1].text == "[result]\n42"


def test_a_dead_session_is_not_replaced_in_silence(manager: SessionManager) -> None:
    runner = agent([make_code_sandbox_tool(manager)], code("x = 41"), "one", code("x + 1"), code("1"), "two")
    runner.invoke(ASK, thread("mortal"))
    assert manager.stop("mortal")
    *_, reply, after = tool_messages(runner.invoke(ASK, thread("mortal")))
    assert "all variables, imports and files from before are gone" in reply.text
    assert "it was stopped" in reply.text
    assert "NameError" in reply.text
    assert "gone" in reply.artifact["notice"]
    assert after.text == "[result]\n1", "it is said once"


def test_a_session_that_is_started_again(server: Server) -> None:
    manager = SessionManager(session_storage="BIND", url=server.url, key_prefix="again-")
    tool = make_code_sandbox_tool(manager, lambda: "disk")
    invoke(tool, code="x = 1; open('kept.txt', 'w').write('here')")
    manager.stop("disk")
    # `start` does not return the notice, so the next call has it.
    manager.start("disk")
    reply = invoke(tool, code="print(open('kept.txt').read())")
    assert "all variables and imports are gone; the files in /session are still there" in reply.text
    assert reply.text.endswith("here")


def test_a_session_that_ends_under_the_code(manager: SessionManager) -> None:
    tool = make_code_sandbox_tool(manager, lambda: "doomed")
    session = manager.start("doomed")
    answers: list[ToolMessage] = []
    running = threading.Thread(target=lambda: answers.append(invoke(tool, code="import time; time.sleep(30)")))
    running.start()
    while not session.refresh().running:
        time.sleep(0.01)
    session.stop()
    running.join(20)
    [answer] = answers
    assert "ended" in answer.text
    assert "variables and imports" in answer.text
    assert "gone" in answer.text
    assert answer.artifact["status"] != "ok"
    assert "NOTE" in invoke(tool, code="1").text


def test_a_kernel_that_dies(manager: SessionManager) -> None:
    answer = invoke(make_code_sandbox_tool(manager), code="import os; os._exit(3)")
    assert "All variables and imports are gone; the files in /session are still there" in answer.text
    assert answer.artifact["kernel_state"] == "lost"


def test_failures_of_code_are_answers(manager: SessionManager) -> None:
    failed = invoke(make_code_sandbox_tool(manager), code="print('before')\n1 / 0")
    assert failed.text.startswith("before\n[error]\nTraceback")
    assert "ZeroDivisionError" in failed.text
    assert failed.status == "success", "an error would abort the run of many an agent"
    assert (failed.artifact["status"], failed.artifact["error"]["name"]) == ("error", "ZeroDivisionError")

    late = invoke(make_code_sandbox_tool(manager, timeout_s=0.2), code="import time\ntime.sleep(9)")
    assert "It took too long and was stopped after 0.2 s" in late.text
    assert late.artifact["status"] == "timeout"


def test_failures_of_the_sandbox_are_raised(short_path: Path) -> None:
    manager = SessionManager(url=f"unix:{short_path}/nobody.sock")
    tool = make_code_sandbox_tool(manager)
    with pytest.raises(SandboxFailure, match="nothing listens") as caught:
        invoke(tool, code="1")
    assert caught.value.__cause__ is not None
    assert caught.value.hint
    with pytest.raises(SandboxFailure):
        agent([tool], code("1"), "done").invoke(ASK, thread("broken"))

    # With `handle_tool_error` the model gets the error instead.
    tool.handle_tool_error = True
    assert "the sandbox failed" in invoke(tool, code="1").text


def test_a_session_that_cannot_be_had_is_a_failure_too(server: Server) -> None:
    tool = make_code_sandbox_tool(SessionManager(image="nonsense:1", url=server.url))
    with pytest.raises(SandboxFailure, match="image `nonsense:1`"):
        invoke(tool, code="1")


def test_long_output_is_cut_for_the_model_only(manager: SessionManager) -> None:
    answer = invoke(make_code_sandbox_tool(manager, max_output_chars=1000), code="print('a' * 5000 + 'end')")
    assert len(answer.text) < 1200
    assert answer.text.endswith("end")
    assert "[... 4004 of 5004 characters were cut here ...]" in answer.text
    assert len(answer.artifact["stdout"]) == 5004
    flood = invoke(make_code_sandbox_tool(manager), code="print('a' * (3 << 20))")
    assert "more bytes of output were not kept" in flood.text
    assert len(flood.text) < 21_000


def test_many_images(manager: SessionManager) -> None:
    draw = (
        "import base64\n"
        "for i in range(6):\n"
        "    open(f'/session/artifacts/{i}.png', 'wb').write(base64.b64decode(%r))"
    )
    dot = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    seen = invoke(make_code_sandbox_tool(manager, images=True), code=draw % dot)
    assert [block["type"] for block in seen.content_blocks] == ["text"] + ["image"] * 4
    assert "2 of 6 images are not shown" in seen.text
    assert isinstance(invoke(make_code_sandbox_tool(manager), code=draw % dot).content, str), "only if asked for"


def test_every_call_in_a_sandbox_of_its_own(manager: SessionManager) -> None:
    tool = make_code_sandbox_tool(manager, ephemeral=True)
    left = invoke(tool, code="x = 1; open('/work/artifacts/out.txt', 'w').write('hi'); None")
    assert f"out.txt (2 bytes, text/plain): {'file' if CLUSTER is None else 'http'}://" in left.text
    [(inside, outside)] = left.artifact["artifact_map"].items()
    assert inside == "/work/artifacts/out.txt"
    assert Path(outside).read_text() == "hi"
    assert "NameError" in invoke(tool, code="x").text


def test_links_of_a_server_with_an_address(keyed: tuple[Server, str]) -> None:
    server, key = keyed
    client = Client(server.url, api_key=key)
    manager = SessionManager(url=server.url, api_key=key, default_key="web")
    answer = invoke(make_code_sandbox_tool(manager), code="open('/session/artifacts/a.txt', 'w').write('a'); None")
    assert f"a.txt (1 bytes, text/plain): {server.url}/artifacts/art_" in answer.text
    manager.stop("web")
    client.close()


def test_whose_session_it_is(manager: SessionManager) -> None:
    def tenant(runtime: Any) -> str:
        return f"{runtime.config['configurable']['user']}-{runtime.config['configurable']['thread_id']}"

    config = {"configurable": {"thread_id": "7", "user": "ada"}}
    state = agent([make_code_sandbox_tool(manager, tenant)], code("1"), "done").invoke(ASK, config)
    assert tool_messages(state)[-1].artifact["session_key"] == "ada-7"
    # Without a thread there is one session of the manager's own, which no other program finds.
    assert invoke(make_code_sandbox_tool(manager), code="1").artifact["session_key"] == manager.default_key
    assert SessionManager().default_key != SessionManager().default_key
