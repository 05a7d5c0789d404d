"""A server with OpenAI's protocol that returns scripted answers."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


class FakeModel:
    """Returns one answer of `script` after another: a string, or a tool's name and its arguments."""

    def __init__(self, script: list[Any], *, status: int = 200) -> None:
        self._script = list(script)
        self._status = status
        self._lock = threading.Lock()
        #: The requests, in order.
        self.asked: list[dict[str, Any]] = []
        #: The headers of the requests.
        self.heads: list[dict[str, str]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> FakeModel:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def left(self) -> int:
        """How many answers of the script were not used."""
        return len(self._script)

    def _next(self, asked: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.asked.append(asked)
            said = self._script.pop(0) if self._script else "I have nothing more to say."
        if isinstance(said, str):
            return {"role": "assistant", "content": said}
        name, arguments = said
        call = {"name": name, "arguments": json.dumps(arguments)}
        calls = [{"index": 0, "id": f"call_{len(self.asked)}", "type": "function", "function": call}]
        return {"role": "assistant", "content": None, "tool_calls": calls}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        model = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if model._status != 200:
                    return self._send(model._status, "application/json", json.dumps({"error": {"message": "no"}}))
                model.heads.append({name.lower(): value for name, value in self.headers.items()})
                message = model._next(asked)
                ended = "tool_calls" if "tool_calls" in message else "stop"
                common = {"id": "x", "created": 0, "model": asked["model"]}
                if asked.get("stream"):
                    choices = [
                        {"index": 0, "delta": message, "finish_reason": None},
                        {"index": 0, "delta": {}, "finish_reason": ended},
                    ]
                    chunks = [{**common, "object": "chat.completion.chunk", "choices": [choice]} for choice in choices]
                    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
                    return self._send(200, "text/event-stream", body)
                choice = {"index": 0, "message": message, "finish_reason": ended}
                usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
                answer = {**common, "object": "chat.completion", "choices": [choice], "usage": usage}
                return self._send(200, "application/json", json.dumps(answer))

            def _send(self, status: int, kind: str, body: str) -> None:
                self.send_response(status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(body.encode())))
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler
