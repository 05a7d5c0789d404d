"""Frames between the kernel and the guest, over a UNIX stream socket.

    u32 LE head length | u32 LE body length | head: JSON object | body: raw bytes

Large data (code, MIME bundles) is in the body, so that the head is small and fast to parse. The descriptor is used with
`os.read` and `os.write`: importing `socket` would add two milliseconds to the start-up time.
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import threading

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from typing import Any

# The guest never sends more: a larger length means that the two sides disagree where a frame starts.
MAX_HEAD_BYTES = 1 << 20
MAX_BODY_BYTES = 256 << 20

# Above the user's own descriptors, but below 1024: the usual soft limit, and the most that select() supports.
PRIVATE_FD_FLOOR = 960
# Used when the limit on open files is lower than that.
PRIVATE_FD_FLOOR_LOW = 100

_READ_BYTES = 1 << 16
_LENGTHS = struct.Struct("<II")
# json.dumps() with options would create an encoder for every message.
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


class ProtocolError(Exception):
    """The guest sent something that is not a frame."""


def encode_json(value: Any) -> bytes:
    """JSON that strict parsers accept: no NaN, and no lone surrogates (they become `?`)."""
    return _encode(value).encode("utf-8", "replace")


def private_fd(fd: int) -> int:
    """Duplicates `fd` to a high number that no exec'd program inherits."""
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, PRIVATE_FD_FLOOR)
    except OSError:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, PRIVATE_FD_FLOOR_LOW)


class Channel:
    """The kernel's end of the control socket. Takes ownership of `fd`."""

    def __init__(self, fd: int) -> None:
        self._fd = private_fd(fd)
        os.close(fd)
        os.set_blocking(self._fd, True)
        self._buffer = bytearray()
        # The running exec, and lines of input for it that it has not read yet.
        self._exec_id: Any = None
        self._inputs: list[bytes] = []
        # `display()` may be called from any of the user's threads.
        self._lock = threading.Lock()
        # Frames that go out with the next one that is sent.
        self._held = b""

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """The next frame; None if the guest has closed the connection."""
        if not self._fill(_LENGTHS.size):
            return None
        head_len, body_len = _LENGTHS.unpack_from(self._buffer)
        if head_len > MAX_HEAD_BYTES or body_len > MAX_BODY_BYTES:
            raise ProtocolError(f"a frame of {head_len} + {body_len} bytes is over the limit")
        body_start = _LENGTHS.size + head_len
        end = body_start + body_len
        if not self._fill(end):
            return None
        head = json.loads(self._buffer[_LENGTHS.size : body_start])
        body = bytes(self._buffer[body_start:end])
        del self._buffer[:end]
        return head, body

    def send(self, head: dict[str, Any], body: bytes = b"") -> None:
        """Sends one frame. `interrupts` never raises inside this method."""
        # In a forked child the descriptor is closed, and the lock may be held by a thread that does not exist there.
        if self._fd < 0:
            return
        frame = _frame(head, body)
        with self._lock:
            frame, self._held = self._held + frame, b""
            sent = os.write(self._fd, frame)
            if sent < len(frame):
                rest = memoryview(frame)[sent:]
                while rest:
                    rest = rest[os.write(self._fd, rest) :]

    def hold(self, head: dict[str, Any], body: bytes) -> None:
        """Keeps a frame, and sends it together with the next one."""
        with self._lock:
            self._held += _frame(head, body)

    def exchange(self, head: dict[str, Any], body: bytes) -> None:
        """Sends a frame and waits until the guest has seen it. `interrupts` never raises inside this method.

        Only for the main thread, and only while a cell runs: then the guest sends nothing else.
        """
        self.send(head, body)
        while self._fd >= 0:
            frame = self.receive()
            if frame is None or frame[0].get("op") == "seen":
                return
            self._keep_input(*frame)

    def take_descriptor(self, head: dict[str, Any]) -> int | None:
        """Sends that we are ready for a descriptor, and receives it; only while no cell runs.

        It arrives with one byte that is not part of a frame. The guest sends nothing before it: a plain read would lose
        the descriptor.
        """
        import socket

        self.send(head)
        with socket.socket(fileno=os.dup(self._fd)) as control:
            _byte, fds, _flags, _ = socket.recv_fds(control, 1, 1, socket.MSG_CMSG_CLOEXEC)
        return fds[0] if fds else None

    def expect_input(self, exec_id: Any) -> None:
        """Called when another exec starts: input for an earlier one is dropped."""
        self._exec_id = exec_id
        self._inputs.clear()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until the guest sends something, or this long; returns whether it did. An interrupt loses no data."""
        if self._buffer or self._inputs:
            return True
        import select

        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def absorb(self) -> None:
        """Reads one frame, if no line of input is left. `interrupts` never raises inside this method."""
        if not self._inputs:
            frame = self.receive()
            if frame is None:
                self._inputs.append(b"")
            else:
                self._keep_input(*frame)

    def take_input(self) -> bytes | None:
        """A line of input, if there is one; an empty line is the end of the input."""
        return self._inputs.pop(0) if self._inputs else None

    def _keep_input(self, head: dict[str, Any], body: bytes) -> None:
        if head.get("op") == "input" and head.get("exec_id") == self._exec_id:
            self._inputs.append(body)

    def _fill(self, size: int) -> bool:
        """Reads until the buffer holds `size` bytes; False at the end of the stream."""
        while len(self._buffer) < size:
            chunk = os.read(self._fd, max(_READ_BYTES, size - len(self._buffer)))
            if not chunk:
                return False
            self._buffer += chunk
        return True


def _frame(head: dict[str, Any], body: bytes) -> bytes:
    encoded = encode_json(head)
    return _LENGTHS.pack(len(encoded), len(body)) + encoded + body
