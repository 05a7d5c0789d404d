# Made of ../_aio/volumes.py by scripts/generate_sync.py; change that one.
"""Files that outlive sessions."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from belljar import _calls
from belljar._calls import Size
from belljar.models import Volume

if TYPE_CHECKING:
    from belljar._sync.client import Client


class Volumes:
    """The volumes of this tenant (`client.volumes`): named, bounded, shared by sessions.

    >>> client.volumes.create("models", size="2G")
    >>> with client.session(volumes={"models": "rw"}) as session:
    ...     session.run_code("open('/volumes/models/a', 'w').write('kept')")
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, name: str, *, size: Size | None = None) -> Volume:
        """A new, empty volume with room for `size` bytes (or text such as `"512M"`); as much as the server likes
        unless told. A name that is taken is a `Conflict`."""
        return self._client._do(_calls.create_volume(name, size))

    def list(self) -> builtins.list[Volume]:
        """All of them, by name; how full one is, `get` tells."""
        return self._client._do(_calls.volumes())

    def get(self, name: str) -> Volume:
        """One of them: how full it is, and who uses it."""
        return self._client._do(_calls.volume(name))

    def remove(self, name: str) -> None:
        """Removes a volume with everything in it. One that a session uses is a `Conflict`, and stays."""
        self._client._do(_calls.remove_volume(name))
