"""Messages to and from Chromium: JSON, each ended by a NUL, over two pipes.

There is one thread and one loop: code that waits for a reply calls `pump`, and events that arrive meanwhile are passed
to `on_event`, which must not wait.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from belljar_browser.errors import BrowserCrashed, BrowserError, Interrupted, PageTimeout, Refused

# Chromium's own limit: a larger message means that the two sides disagree where it ends.
MAX_MESSAGE = 256 << 20
# How much of Chromium's standard error is kept.
MAX_COMPLAINTS = 4096
_READ = 1 << 18


class Interrupts:
    """SIGINT as a descriptor to wait for, so that it never interrupts a message."""

    def __init__(self) -> None:
        self.asked = False
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, self._ask)

    def _ask(self, number: int, frame: Any) -> None:
        self.asked = True

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self.fd, 4096)

    def forget(self) -> None:
        """Drops an interrupt for the last action, which is not for the next one."""
        self.drain()
        self.asked = False


class Pipe:
    def __init__(
        self, reader: int, writer: int, complaints: int, interrupts: Interrupts, on_event: Callable[..., None]
    ) -> None:
        self.reader, self.writer, self.errors = reader, writer, complaints
        for fd in (reader, writer, complaints):
            os.set_blocking(fd, False)
        self._interrupts = interrupts
        self._on_event = on_event
        self._number = 0
        self._buffer = bytearray()
        self._searched = 0
        self._outgoing = bytearray()
        self._awaited: dict[int, dict[str, Any] | None] = {}
        self._thens: dict[int, Callable[[], None]] = {}
        self._complaints = bytearray()
        self.is_open = True

    def close(self) -> None:
        self.is_open = False
        for fd in (self.reader, self.writer, self.errors):
            if fd >= 0:
                os.close(fd)
        self.reader = self.writer = self.errors = -1

    def complaints(self) -> str:
        return self._complaints.decode("utf-8", "replace").strip()

    def post(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        session: str | None = None,
        then: Callable[[], None] | None = None,
    ) -> int:
        """Sends a message without waiting for the reply; `then` is called with it."""
        self._number += 1
        if then is not None:
            self._thens[self._number] = then
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params or {}}
        if session is not None:
            message["sessionId"] = session
        self._outgoing += json.dumps(message).encode() + b"\0"
        self._flush()
        return self._number

    def call(
        self,
        method: str,
        params: dict[str, Any] | None = None,
        *,
        session: str | None = None,
        deadline: float,
        check: Callable[[], None] = lambda: None,
        what: str = "",
    ) -> dict[str, Any]:
        """Sends a message and waits for the reply. `check` raises if waiting is pointless."""
        number = self.post(method, params, session)
        self._awaited[number] = None
        try:
            while (reply := self._awaited[number]) is None:
                check()
                self.pump(deadline, what or method)
        finally:
            del self._awaited[number]
        if "error" in reply:
            raise Refused(str(reply["error"].get("message", "unknown")))
        result: dict[str, Any] = reply.get("result", {})
        return result

    def until(
        self, condition: Callable[[], Any], deadline: float, what: str, check: Callable[[], None] = lambda: None
    ) -> Any:
        """Waits for a condition that events change."""
        while not (value := condition()):
            check()
            self.pump(deadline, what)
        return value

    def settle(self, seconds: float) -> None:
        """Handles events for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                self.pump(end, "")
            except PageTimeout:
                return

    def pump(self, deadline: float, what: str) -> None:
        """Waits for messages of Chromium, and handles them."""
        left = deadline - time.monotonic()
        if left <= 0:
            raise PageTimeout(f"timed out waiting for {what}")
        if not self.is_open:
            raise BrowserCrashed("the browser has ended")
        poll = select.poll()
        poll.register(self.reader, select.POLLIN)
        poll.register(self._interrupts.fd, select.POLLIN)
        if self.errors >= 0:
            poll.register(self.errors, select.POLLIN)
        if self._outgoing:
            poll.register(self.writer, select.POLLOUT)
        ready = {fd for fd, _ in poll.poll(min(left, 60.0) * 1000 + 1)}
        if self._interrupts.fd in ready:
            self._interrupts.drain()
        if self._interrupts.asked:
            raise Interrupted
        if self.writer in ready:
            self._flush()
        if self.errors in ready:
            self._hear_complaints()
        if self.reader in ready:
            self.read_available()

    def fds(self) -> list[int]:
        """The descriptors to wait for between two actions."""
        return [fd for fd in (self.reader, self.errors) if fd >= 0]

    def read_available(self) -> None:
        """Reads available messages, and does not wait for more."""
        self._hear_complaints()
        while True:
            try:
                chunk = os.read(self.reader, _READ)
            except BlockingIOError:
                break
            if not chunk:
                self.is_open = False
                raise BrowserCrashed("the browser has ended")
            self._buffer += chunk
            if len(self._buffer) > MAX_MESSAGE:
                self.is_open = False
                raise BrowserError("the browser sent a message that is too large")
            if len(chunk) < _READ:
                break
        while (end := self._buffer.find(b"\0", self._searched)) >= 0:
            message = json.loads(self._buffer[:end])
            del self._buffer[: end + 1]
            self._searched = 0
            if "id" in message:
                if message["id"] in self._awaited:
                    self._awaited[message["id"]] = message
                elif then := self._thens.pop(message["id"], None):
                    then()
            else:
                self._on_event(message.get("method", ""), message.get("params", {}), message.get("sessionId"))
        self._searched = len(self._buffer)

    def _hear_complaints(self) -> None:
        if self.errors < 0:
            return
        try:
            chunk = os.read(self.errors, _READ)
        except BlockingIOError:
            return
        if chunk:
            self._complaints = (self._complaints + chunk)[-MAX_COMPLAINTS:]
        else:
            os.close(self.errors)
            self.errors = -1

    def _flush(self) -> None:
        try:
            while self._outgoing:
                del self._outgoing[: os.write(self.writer, memoryview(bytes(self._outgoing[:_READ])))]
        except BlockingIOError:
            # Chromium does not read now: `pump` continues later.
            pass
        except BrokenPipeError:
            self.is_open = False
            raise BrowserCrashed("the browser has ended") from None
