"""The nine tools of python-agent-sandbox, and an agent that browses: with native sandboxes, and with containers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import invoke
from browsing import SHOP, has_browser_use, step
from langchain_core.messages import ToolMessage
from servers import CLUSTER, REPOSITORY, Server, content_of, python_path

from belljar import BelljarToolkit, SessionManager
from belljar.toolkit import BrowserModel

IMAGE = "belljar/test-browser:1"

Use = Callable[..., ToolMessage]

# What browser-use is told by a model that the sandbox serves to itself.
MODEL = """
import http.server, json, threading
class Model(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        choice = {"index": 0, "finish_reason": "stop",
                  "message": {"role": "assistant", "content": json.dumps(SCRIPT.pop(0))}}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        body = json.dumps({"id": "1", "object": "chat.completion", "created": 1, "model": "scripted",
                           "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *said):
        pass
threading.Thread(target=http.server.ThreadingHTTPServer(("127.0.0.1", 9000), Model).serve_forever, daemon=True).start()
"""
SCRIPT = [
    step("Open the shop", navigate={"url": "http://localhost:8000/", "new_tab": False}),
    step("Answer", done={"text": "It is a fruit shop.", "success": True, "files_to_display": []}),
]


# `make test` prepares the engine meanwhile, and says when that has come to its end.
PREPARED = REPOSITORY / "target" / "docker" / "done"
PATIENCE = 600.0


def has_image() -> bool:
    deadline = time.monotonic() + (PATIENCE if os.environ.get("WAIT_FOR_ENGINE") else 0)
    while not PREPARED.exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    try:
        # With browser-use: it is there if the machine's Python and the image's are of one generation.
        look = ["docker", "run", "--rm", "--network", "none", IMAGE, "test", "-x", "/opt/browser-use/bin/python"]
        asked = subprocess.run(look, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode == 0


@pytest.fixture(scope="module", params=["native", "docker"])
def place(request: pytest.FixtureRequest, _scratch: None) -> Iterator[Server]:
    """A server of either kind, with a browser in its sandboxes."""
    if not has_browser_use():
        pytest.skip("no Chromium, or `belljar setup --browser` was not run")
    if CLUSTER is not None:
        if request.param == "docker":
            pytest.skip("the nodes of the cluster have native sandboxes")
        yield request.getfixturevalue("server")
        return
    env: dict[str, Any] = {}
    if request.param == "docker":
        if not has_image():
            pytest.skip("no container engine with an image that has a browser; scripts/prepare-docker makes one")
        env = {"BELLJAR_BACKEND": "docker", "SANDBOX_IMAGE": IMAGE}
    started = Server(Path(tempfile.mkdtemp(prefix="s-")), **env).start()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def use(place: Server) -> Iterator[Use]:
    manager = SessionManager(url=place.url, memory="1G", key_prefix=f"{os.urandom(4).hex()}-")
    model = BrowserModel(model="scripted", base_url="http://localhost:9000/v1")
    toolkit = BelljarToolkit(session_manager=manager, browser_model=model, timeout_s=120)
    tools = {tool.name: tool for tool in toolkit.get_tools()}
    assert len(tools) == 9

    def call(name: str, **args: Any) -> ToolMessage:
        return invoke(tools[name], **args)

    yield call
    manager.stop(manager.default_key)
    manager.close()


def test_nine_tools(use: Use) -> None:
    """Each as it is described: one workspace for all of them."""
    assert use("make_directory", path="reports").text == "Created the directory reports."
    assert use("write_file", path="reports/a.txt", content="hello\n").text == "Wrote reports/a.txt (6 bytes)."
    assert use("read_file", path="reports/a.txt").text == "hello"
    assert use("list_files", path="reports").text == "a.txt (6 bytes)"
    assert use("execute_shell", command="cat reports/a.txt | tr a-z A-Z").text == "HELLO"
    assert use("execute_python_script", code="open('reports/a.txt').read().upper()").text == "[result]\n'HELLO\\n'"
    assert use("delete_file", path="reports", recursive=True).text == "Deleted reports."
    script = f"SCRIPT = __import__('json').loads({json.dumps(json.dumps(SCRIPT))})\n"
    assert "open" in use("execute_python_script", code=script + MODEL + SHOP).text

    done = use("browser_tool", task="What is at http://localhost:8000/?")
    assert done.text.startswith("It is a fruit shop.\n[steps]\nstep 1: Open the shop"), done.text
    assert done.artifact["state"]["title"] == "Fruit shop"
    picture = use("screenshot_browser", url="http://localhost:8000/", full_page=True)
    assert "[artifacts]\n- screenshot-" in picture.text
    assert "image/png" in picture.text
    nothing = use("screenshot_browser", url="http://localhost:8001/")
    assert "net::ERR_CONNECTION_REFUSED" in nothing.text
    assert nothing.artifact["code"] == "navigation_failed"


def test_browser_agent(place: Server) -> None:
    """It downloads a file from a site, works on it, and leaves a picture."""
    example = REPOSITORY / "examples" / "browser_agent.py"
    env = {**os.environ, "PYTHONPATH": python_path(), "BELLJAR_URL": place.url}
    env.pop("OPENAI_API_KEY", None)
    done = subprocess.run([sys.executable, example], env=env, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert "The prices were downloaded." in done.stdout, done.stdout
    assert "prices.csv (35 bytes)" in done.stdout
    assert "{'fruit': 'figs', 'price': '9'}" in done.stdout
    link = done.stdout.split("Here is the picture: ")[1].split()[0]
    assert content_of(link).startswith(b"\x89PNG")
