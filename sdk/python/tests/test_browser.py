"""A session's browser, through the client: real Chromium, pages that the sandbox itself serves."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import SHOP, has_browser_use, has_chromium, step
from fake_model import FakeModel
from servers import Server

from belljar import AsyncClient, BrowserError, Client, InvalidRequest, Session
from belljar.events import Output

pytestmark = pytest.mark.skipif(not has_chromium(), reason="there is no Chromium on this machine")


@pytest.fixture(scope="module")
def shop(server: Server) -> Iterator[Session]:
    with Client(server.url) as client, client.session() as session:
        session.run_code(SHOP).raise_for_error()
        yield session


def test_a_page_is_used(shop: Session) -> None:
    browser = shop.browser
    assert browser.goto("http://localhost:8000").title == "Fruit shop"
    assert '- textbox "Search"' in browser.snapshot()
    browser.type("plums", text="Search", submit=True)
    assert browser.text(selector="p") == "You look for plums."
    assert browser.evaluate("location.search.length") > 0
    browser.back()
    file = browser.download(text="Prices")
    assert shop.files.read(file.path).startswith(b"fruit,price\n")
    assert file.size == 28
    state = browser.status()
    assert (state.browser, state.title, [tab.tab for tab in state.tabs]) == ("kept", "Fruit shop", [1])
    with pytest.raises(BrowserError) as refused:
        browser.click(text="no such thing", timeout=0.2)
    assert (refused.value.code, refused.value.status) == ("no_such_element", 422)
    with pytest.raises(BrowserError, match="net::ERR_CONNECTION_REFUSED"):
        browser.goto("http://localhost:8001")


def test_a_screenshot_is_an_artifact(shop: Session) -> None:
    screenshot = shop.browser.screenshot(html="<h1>hello</h1>", name="hello", width=320, height=200)
    assert screenshot.png.startswith(b"\x89PNG")
    assert (screenshot.width, screenshot.height) == (320, 200)
    assert shop.artifacts.find("hello.png").sha256 == screenshot.artifact.sha256


async def test_the_same_with_await(server: Server) -> None:
    async with AsyncClient(server.url) as client, client.session() as session:
        await session.browser.goto("about:blank")
        assert await session.browser.evaluate("6 * 7") == 42
        assert (await session.browser.close()).browser == "stopped"


@pytest.mark.skipif(not has_browser_use(), reason="`belljar setup --browser` was not run")
class TestTasks:
    SCRIPT = (
        step("Open the shop", navigate={"url": "http://localhost:8000/", "new_tab": False}),
        step("Answer", done={"text": "Pears cost 3.", "success": True, "files_to_display": []}),
    )

    def test_steps_are_told_and_the_key_stays_outside(self) -> None:
        """The proxy adds it: code in the sandbox has no way to know it."""
        with FakeModel([json.dumps(said) for said in self.SCRIPT]) as model:
            host = model.url.split("/")[2]
            secret = {"MODEL": {"value": "Bearer sk-outside", "hosts": [f"http://{host}"]}}
            directory = Path(tempfile.mkdtemp(prefix="s-"))
            env: dict[str, Any] = {
                "BELLJAR_MAX_NETWORK": host,
                "BELLJAR_NETWORK_SECRETS": json.dumps(secret),
                "BELLJAR_BROWSER_MODEL": "scripted",
                "BELLJAR_BROWSER_MODEL_URL": model.url,
            }
            inject = [{"host": host, "header": "Authorization", "value_from": "MODEL"}]
            server = Server(directory, **env).start()
            try:
                with Client(server.url) as client:
                    network = {"allow": [host], "inject": inject}
                    with client.session(network=network, limits={"memory": "1G"}) as session:
                        self._perform(session)
            finally:
                server.stop()
            assert [asked["authorization"] for asked in model.heads] == ["Bearer sk-outside"] * 2
            assert "sk-outside" not in json.dumps(model.asked)

    def _perform(self, session: Session) -> None:
        session.run_code(SHOP).raise_for_error()
        received: list[str] = []

        def receive(output: Output) -> None:
            received.append(output.text)

        done = session.browser.task("What do pears cost?", on_step=receive)
        assert (done.answer, done.success, done.steps) == ("Pears cost 3.", True, 2)
        assert done.log == "".join(received)
        assert "step 1: Open the shop" in done.log
        assert 'navigate {"url": "http://localhost:8000/"' in done.log
        # It is the session's own browser that was used.
        assert done.state.title == "Fruit shop"
        assert session.browser.text(selector="h1") == "Fruit"
        found = session.run_command("env; cat /proc/[0-9]*/environ | tr '\\0' '\\n'").stdout
        assert "sk-outside" not in found

    def test_what_is_missing_is_said(self, shop: Session) -> None:
        for asked in ({}, {"model": "x", "key_from": "NOT_THERE"}):
            given: Any = asked
            with pytest.raises(InvalidRequest):
                shop.browser.task("anything", **given)
        with pytest.raises(BrowserError) as failed:
            shop.browser.task("anything", model="x", base_url="http://localhost:1/v1", max_steps=1, timeout=60)
        assert failed.value.code == "task_failed"

