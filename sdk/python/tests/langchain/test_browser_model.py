"""Browser tools with nothing set but a key, and what they say about the network they need."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agents import ainvoke, invoke
from browsing import SHOP, has_browser_use, has_chromium, step
from fake_model import FakeModel
from servers import Server
from users import User

from belljar import BelljarToolkit, SessionManager

SCRIPT = [
    step("Open the shop", navigate={"url": "http://localhost:8000/", "new_tab": False}),
    step("Answer", done={"text": "It is a fruit shop.", "success": True, "files_to_display": []}),
]


def tools_of(toolkit: BelljarToolkit) -> dict[str, Any]:
    return {tool.name: tool for tool in toolkit.get_tools()}


@pytest.mark.skipif(not has_browser_use(), reason="no Chromium, or `belljar setup --browser` was not run")
def test_a_key_is_enough(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    user.becomes_us(monkeypatch)
    with FakeModel([json.dumps(said) for said in SCRIPT]) as model:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-only-outside")
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        with SessionManager(memory="1G") as manager:
            toolkit = BelljarToolkit(session_manager=manager)
            tools = tools_of(toolkit)
            invoke(tools["execute_python_script"], code=SHOP)
            done = invoke(tools["browser_tool"], task="What is at http://localhost:8000/?")
            where = model.url.removeprefix("http://").removesuffix("/v1")
            assert f"Browser tasks are done by gpt-5-mini at {where}. The server's proxy adds the key" in done.text
            assert "It is a fruit shop." in done.text
            assert {head["authorization"] for head in model.heads} == {"Bearer sk-only-outside"}
            assert {asked["model"] for asked in model.asked} == {"gpt-5-mini"}
            assert toolkit._access.introduction() is None, "once is enough"
            look = "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'; grep -rs sk-only /session /tmp"
            assert "sk-only" not in invoke(tools["execute_shell"], command=look).text
            manager.stop(manager.default_key)


async def test_a_server_without_the_key_does_without(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sessions are as they are without a key here, and only tasks say what is missing."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-this-program")
    with SessionManager(url=server.url) as manager:
        tools = tools_of(BelljarToolkit(session_manager=manager))
        assert invoke(tools["execute_shell"], command="echo fine").text == "fine"
        assert manager.open(manager.default_key).session.info.network == "none"
        refused = invoke(tools["browser_tool"], task="Anything")
        assert "Start the server with OPENAI_API_KEY set" in refused.text
        assert "sk-of" not in refused.text
        assert "OPENAI_API_KEY set" in (await ainvoke(tools["browser_tool"], task="Anything")).text
        manager.stop(manager.default_key)


@pytest.mark.skipif(not has_chromium(), reason="no Chromium")
def test_a_picture_of_a_public_page_says_which_setting_it_needs(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    user.becomes_us(monkeypatch)
    with SessionManager(memory="1G") as manager:
        tools = tools_of(BelljarToolkit(session_manager=manager))
        refused = invoke(tools["screenshot_browser"], url="https://example.org/")
        assert 'BelljarToolkit(network="open")' in refused.text
        assert "BELLJAR_NETWORK=open" in refused.text
        manager.stop(manager.default_key)
    # A policy for other hosts is named, with what it allows.
    with SessionManager(memory="1G") as manager:
        tools = tools_of(BelljarToolkit(session_manager=manager, network=["example.com"]))
        refused = invoke(tools["screenshot_browser"], url="https://example.org/")
        assert "`example.org:443` is not allowed by the network policy" in refused.text
        manager.stop(manager.default_key)
    # That one setting is all that it takes, on a server of one's own: the host is asked for, and not refused.
    with SessionManager(memory="1G") as manager:
        tools = tools_of(BelljarToolkit(session_manager=manager, network="open"))
        tried = invoke(tools["screenshot_browser"], url="https://no-such-host.invalid/")
        assert "is not allowed by" not in tried.text
        assert tried.artifact["code"] == "navigation_failed"
        assert manager.open(manager.default_key).session.info.network == "open"
        manager.stop(manager.default_key)
