"""The loop: performs one action after another, and handles Chromium's events between them.

After some idle time Chromium is stopped, and the guest is asked to end this process too, so that an unused browser
costs nothing. The next action starts both again.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
import traceback
from typing import Any

from belljar_browser import process
from belljar_browser.actions import Request, perform
from belljar_browser.browser import Browser
from belljar_browser.errors import BrowserCrashed, BrowserError, Interrupted, Refused
from belljar_browser.pipe import Interrupts
from belljar_kernel.wire import Channel, encode_json

PROTOCOL = 1
DEFAULT_IDLE = 90.0
IDLE_VARIABLE = "BELLJAR_BROWSER_IDLE"


def serve(control: int) -> None:
    Service(Channel(control)).run()


class Service:
    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        process.reserve_descriptors()
        self._interrupts = Interrupts()
        self._browser = Browser(self._interrupts)
        self._count = 0
        self._used = time.monotonic()
        self._idle = DEFAULT_IDLE

    def run(self) -> None:
        version = ".".join(map(str, sys.version_info[:3]))
        hello = {"op": "hello", "protocol": PROTOCOL, "language": "browser", "language_version": version}
        self._channel.send({**hello, "pid": os.getpid()})
        while True:
            if self._wait():
                frame = self._channel.receive()
                if frame is None or frame[0].get("op") == "shutdown":
                    self._browser.stop()
                    return
                self._obey(*frame)
            elif time.monotonic() - self._used >= self._idle:
                self._browser.stop()
                # If an action is already on its way, the guest ignores this, and the loop goes on.
                self._channel.send({"op": "leave"})
                self._used = time.monotonic()

    def _wait(self) -> bool:
        """Waits for the guest: true if it has sent something, false after the idle time."""
        while True:
            left = self._used + self._idle - time.monotonic()
            if left <= 0:
                return False
            poll = select.poll()
            poll.register(self._channel.fileno(), select.POLLIN)
            for fd in self._browser.pipe.fds() if self._browser.runs else []:
                poll.register(fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(left * 1000 + 1)}
            if self._channel.fileno() in ready:
                return True
            if ready:
                try:
                    self._browser.handle_events()
                except BrowserError:
                    self._browser.note_death()

    def _obey(self, head: dict[str, Any], body: bytes) -> None:
        match head.get("op"):
            case "exec":
                self._exec(head, body)
            case "ping":
                self._channel.send({"op": "pong", "token": head.get("token")})
            case "state":
                self._channel.send({"op": "state"})

    def _exec(self, head: dict[str, Any], body: bytes) -> None:
        self._count += 1
        self._interrupts.forget()
        self._take_env(head.get("env") or {})
        status, code = "ok", 0
        try:
            answer = self._perform(body)
            data = {"text/plain": _summary(answer), "application/json": answer}
            self._channel.send({"op": "display", "kind": "result"}, encode_json({"data": data}))
        except Interrupted:
            status, code = "interrupted", 130
        except BrowserError as error:
            status, code = "error", 1
            self._tell(error.code, error.message, error.hint)
        except Exception as error:
            # A bug here, or an unknown reply of the browser.
            status, code = "error", 1
            self._tell("browser_failed", f"{type(error).__name__}: {error}", "", traceback.format_exc())
        self._used = time.monotonic()
        done = {"op": "done", "exec_id": head["exec_id"], "status": status, "exit_code": code}
        self._channel.send({**done, "execution_count": self._count})

    def _perform(self, body: bytes) -> dict[str, Any]:
        try:
            fields = json.loads(body)
        except ValueError as error:
            raise BrowserError(f"an action is a JSON object: {error}") from None
        try:
            return perform(self._browser, Request(fields))
        except BrowserCrashed:
            how = self._browser.note_death()
            raise BrowserCrashed(
                f"the browser crashed ({how}); its tabs, logins and form contents are gone",
                "the next action starts it again; if a page needs much memory, use a session with more",
            ) from None
        except Refused as error:
            raise BrowserError(f"the browser returned an error: {error}") from None

    def _take_env(self, env: dict[str, Any]) -> None:
        os.environ.update({key: str(value) for key, value in env.items()})
        try:
            self._idle = max(1.0, float(os.environ[IDLE_VARIABLE]))
        except (KeyError, ValueError):
            self._idle = DEFAULT_IDLE

    def _tell(self, code: str, message: str, hint: str, trace: str = "") -> None:
        # The hint is in the field that other kernels use for the traceback.
        report = {"name": code, "value": message, "traceback": trace or hint}
        self._channel.send({"op": "error"}, encode_json(report))


def _summary(answer: dict[str, Any]) -> str:
    """The response as one line, for logs."""
    where = answer.get("url", "")
    return f"{where} {json.dumps(answer.get('result', {}))[:200]}".strip()
