"""Decodes server-sent events from chunks of bytes."""

from __future__ import annotations

from typing import NamedTuple

from belljar.errors import ProtocolError

# The largest event: an image or a table, escaped.
_MAX_EVENT = 256 << 20


class ServerEvent(NamedTuple):
    name: str
    position: int | None
    data: bytes


class Decoder:
    def __init__(self) -> None:
        self._bytes = bytearray()
        # No event ends before this offset, so that a large event is not searched from its beginning every time.
        self._searched = 0

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that are complete now. Comments, which keep a connection alive, are skipped."""
        self._bytes += chunk
        events = []
        begin = 0
        while (end := self._bytes.find(b"\n\n", max(begin, self._searched))) >= 0:
            event = _parse(bytes(self._bytes[begin:end]))
            if event is not None:
                events.append(event)
            begin = end + 2
            self._searched = begin
        del self._bytes[:begin]
        # The last byte may be the first half of the two newlines that end an event.
        self._searched = max(0, len(self._bytes) - 1)
        if len(self._bytes) > _MAX_EVENT:
            raise ProtocolError(f"the server sent an event of more than {_MAX_EVENT} bytes")
        return events


def _parse(block: bytes) -> ServerEvent | None:
    name, position, data = "message", None, []
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
        elif field == b"id" and value.isdigit():
            position = int(value)
    return ServerEvent(name, position, b"\n".join(data)) if data else None
