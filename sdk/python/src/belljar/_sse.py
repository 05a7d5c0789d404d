"""Server-sent events, however they are cut into pieces on their way."""

from __future__ import annotations

from typing import NamedTuple

from belljar.errors import ProtocolError

# The largest event: a picture or a table, escaped.
_MAX_EVENT = 256 << 20


class Heard(NamedTuple):
    name: str
    position: int | None
    data: bytes


class Decoder:
    def __init__(self) -> None:
        self._bytes = bytearray()
        # No event ends before this: a large one is not searched from its beginning every time.
        self._searched = 0

    def feed(self, chunk: bytes) -> list[Heard]:
        """The events that are whole now. Comments, which keep a connection alive, are none."""
        self._bytes += chunk
        heard = []
        begin = 0
        while (end := self._bytes.find(b"\n\n", max(begin, self._searched))) >= 0:
            event = _understand(bytes(self._bytes[begin:end]))
            if event is not None:
                heard.append(event)
            begin = end + 2
            self._searched = begin
        del self._bytes[:begin]
        # The last byte may be half of an end.
        self._searched = max(0, len(self._bytes) - 1)
        if len(self._bytes) > _MAX_EVENT:
            raise ProtocolError("the events of the server do not end")
        return heard


def _understand(block: bytes) -> Heard | None:
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
    return Heard(name, position, b"\n".join(data)) if data else None
