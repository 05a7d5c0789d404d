"""A small client of the API, and a suite that uses each kind of request once. Only the standard library."""

from __future__ import annotations

import hashlib
import json
import urllib.error
import urllib.request
from typing import Any

TIMEOUT_S = 60


class Unavailable(Exception):
    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Api:
    def __init__(self, url: str, key: str) -> None:
        self.url, self.key = url, key
        # The node that answered last.
        self.node = ""

    def request(self, method: str, path: str, body: bytes | None = None, accept: str = "application/json") -> bytes:
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json", "Accept": accept}
        request = urllib.request.Request(self.url + path, data=body, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                self.node = answer.headers.get("Belljar-Node") or ""
                return answer.read()
        except urllib.error.HTTPError as error:
            message = f"{method} {path}: {error.code} {error.read().decode(errors='replace')}"
            if error.code in (502, 503):
                raise Unavailable(message, float(error.headers.get("Retry-After") or 1)) from error
            raise AssertionError(message) from error
        # The connection to a pod that went away.
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            raise Unavailable(f"{method} {path}: {error}", 1) from error

    def call(self, method: str, path: str, body: object = None) -> Any:
        answer = self.request(method, path, None if body is None else json.dumps(body).encode())
        return json.loads(answer) if answer else None

    def create(self, **options: object) -> str:
        return self.call("POST", "/v1/sessions", options)["id"]

    def execute(self, session: str, code: str, **options: object) -> dict:
        return self.call("POST", f"/v1/sessions/{session}/exec", {"code": code, **options})

    def hibernate(self, session: str) -> dict:
        return self.call("POST", f"/v1/sessions/{session}/hibernate", {})

    def show(self, session: str) -> dict:
        return self.call("GET", f"/v1/sessions/{session}")

    def stop(self, session: str) -> None:
        self.call("DELETE", f"/v1/sessions/{session}")


def suite(api: Api) -> None:
    """Sessions, executions, files, artifacts, streams, forks, hibernation, runs, lists."""
    session = api.create(key="suite", metadata={"a": 1})
    assert api.call("POST", "/v1/sessions", {"key": "suite"})["id"] == session
    assert api.execute(session, "x = 20; print(x + 1)")["stdout"] == "21\n"
    assert api.execute(session, "1 / 0")["error"]["name"] == "ZeroDivisionError"
    once = [api.execute(session, "x += 1; print(x)", exec_id="once")["stdout"] for _ in range(2)]
    assert once == ["21\n", "21\n"], once
    command = api.call("POST", f"/v1/sessions/{session}/exec", {"command": "echo $((6 * 7))"})
    assert command["stdout"] == "42\n", command

    content = b"".join(b"%d\n" % n for n in range(100_000))
    api.request("PUT", f"/v1/sessions/{session}/files/numbers", content)
    assert api.request("GET", f"/v1/sessions/{session}/files/numbers") == content
    left = api.call("POST", f"/v1/sessions/{session}/exec", {"command": "cp numbers artifacts/"})["artifacts"][0]
    assert left["sha256"] == hashlib.sha256(content).hexdigest(), left
    link = left["url"][left["url"].index("/artifacts/") :]
    assert api.request("GET", link) == content

    stream = json.dumps({"code": "print('streamed')"}).encode()
    events = api.request("POST", f"/v1/sessions/{session}/exec", stream, accept="text/event-stream").decode()
    assert "event: done" in events, events
    assert "streamed" in events, events

    forked = api.call("POST", f"/v1/sessions/{session}/fork", {})["sessions"][0]["id"]
    assert api.execute(forked, "x = 0; print(x)")["stdout"] == "0\n"
    assert api.hibernate(session)["state"] == "hibernated"
    woken = api.execute(session, "print(x)")
    assert (woken["stdout"], woken["kernel_state"]) == ("21\n", "kept"), woken
    assert api.call("POST", "/v1/run", {"code": "print(2 ** 10)"})["stdout"] == "1024\n"
    listed = {listed["id"] for listed in api.call("GET", "/v1/sessions")["sessions"]}
    assert {session, forked} <= listed, listed
    for one in (session, forked):
        api.stop(one)
        assert api.show(one)["state"] == "stopped"
