"""An agent with a browser: it downloads a file from a web site, works on it, and saves a screenshot of the result.

    apt-get install chromium; belljar setup --browser
    pip install 'belljar[langgraph]'
    python examples/browser_agent.py

The web site runs in the agent's own sandbox, so no network is needed. `browser_tool` is another agent: the library
browser-use, with its own model that has OpenAI's protocol. Without an API key both models are scripted, and the
browser's model runs in the sandbox too. With a key, OPENAI_BASE_URL is the model's address, and the server must let the
sandbox connect to it (BELLJAR_MAX_NETWORK; docs/how-to/browser.md).
"""

from __future__ import annotations

import json
import os
import secrets
from urllib.parse import urlsplit

from agents import call, converse, model
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from belljar import BelljarToolkit, SessionManager
from belljar.toolkit import BrowserModel

QUESTION = "Get the prices of http://localhost:8000, name the highest, and give me a screenshot of a small report."

SITE = '''
import http.server, json, threading

PAGES = {
    "/": "<title>Fruit</title><h1>Fruit</h1><p>Fresh every day.</p><a href='/prices.csv' download>Prices</a>",
    "/prices.csv": "fruit,price\\npears,3\\nfigs,9\\nplums,4\\n",
}

class Site(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = PAGES.get(self.path)
        kind = "text/csv" if self.path.endswith(".csv") else "text/html"
        self.answer(200 if body else 404, kind, body or "nothing")

    # The scripted model: returns one answer after another, in OpenAI's protocol.
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        message = {"role": "assistant", "content": json.dumps(SCRIPT.pop(0))}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        answer = {"id": "1", "object": "chat.completion", "created": 1, "model": "scripted", "choices": [choice]}
        self.answer(200, "application/json", json.dumps({**answer, "usage": usage}))

    def answer(self, status, kind, body):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body.encode())))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args):
        pass

site = http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Site)
threading.Thread(target=site.serve_forever, daemon=True).start()
'''


def step(goal: str, **action: dict[str, object]) -> dict[str, object]:
    """An answer of the browser's model: the next goal, and the action for it."""
    return {"evaluation_previous_goal": "", "memory": "", "next_goal": goal, "action": [action]}


CLICK = "document.querySelector('a').click()"
BROWSER_SCRIPT = [
    step("Open the shop", navigate={"url": "http://localhost:8000", "new_tab": False}),
    step("Download the prices", evaluate={"code": f"(function () {{ {CLICK}; return 'clicked' }})()"}),
    step("Wait for the file", wait={"seconds": 1}),
    step("Say so", done={"text": "The prices were downloaded.", "success": True, "files_to_display": []}),
]

REPORT = """
import csv, glob
[path] = glob.glob("/session/downloads/*.csv")
rows = sorted(csv.DictReader(open(path)), key=lambda row: -int(row["price"]))
bars = "".join(f"<p>{r['fruit']} <span style='background: teal; padding-left: {30 * int(r['price'])}px'></span> "
               f"{r['price']}</p>" for r in rows)
open("report.html", "w").write(f"<h1>{rows[0]['fruit']} have the highest price</h1>{bars}")
rows[0]
"""

SCRIPT = [
    call("browser_tool", task="Open http://localhost:8000 and download the prices by clicking 'Prices'."),
    call("list_files", path="downloads"),
    call("execute_python_script", code=REPORT),
    call("screenshot_browser", file="report.html"),
    "Figs have the highest price: 9. Here is the picture: {link}",
]


def main() -> None:
    has_key = bool(os.environ.get("OPENAI_API_KEY"))
    browser_model = BrowserModel(model="scripted", base_url="http://localhost:8000/v1")
    network, env = None, None
    if has_key:
        base_url = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
        browser_model = BrowserModel(model="gpt-5-mini", base_url=base_url)
        network, env = {"allow": [urlsplit(base_url).netloc]}, {"OPENAI_API_KEY": os.environ["OPENAI_API_KEY"]}
    toolkit = BelljarToolkit(
        session_manager=SessionManager(memory="1G", network=network, env=env), browser_model=browser_model
    )
    agent = create_agent(
        model(*SCRIPT),
        tools=toolkit.get_tools(),
        system_prompt="You find things out with a browser and with Python, and give the user a link to the result.",
        checkpointer=InMemorySaver(),
    )
    thread = f"browser-{secrets.token_hex(4)}"
    try:
        # The web site, in the agent's session.
        script = f"SCRIPT = __import__('json').loads({json.dumps(json.dumps(BROWSER_SCRIPT))})\n"
        toolkit.session_manager.exec(thread, script + SITE).raise_for_error()
        converse(agent, QUESTION, thread)
    finally:
        toolkit.session_manager.stop(thread)


if __name__ == "__main__":
    main()
