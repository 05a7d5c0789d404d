"""Files that outlive sessions."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from belljar import _calls
from belljar._calls import Size
from belljar.models import Volume

if TYPE_CHECKING:
    from belljar._aio.client import AsyncClient


class AsyncVolumes:
    """The volumes of this tenant (`client.volumes`): named, bounded, shared by sessions.

    >>> await client.volumes.create("models", size="2G")
    >>> async with client.session(volumes={"models": "rw"}) as session:
    ...     await session.run_code("open('/volumes/models/a', 'w').write('kept')")
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(self, name: str, *, size: Size | None = None) -> Volume:
        """A new, empty volume with room for `size` bytes (or text such as `"512M"`); as much as the server likes
        unless told. A name that is taken is a `Conflict`."""
        return await self._client._do(_calls.create_volume(name, size))

    async def list(self) -> builtins.list[Volume]:
        """All of them, by name; how full one is, `get` tells."""
        return await self._client._do(_calls.volumes())

    async def get(self, name: str) -> Volume:
        """One of them: how full it is, and who uses it."""
        return await self._client._do(_calls.volume(name))

    async def remove(self, name: str) -> None:
        """Removes a volume with everything in it. One that a session uses is a `Conflict`, and stays."""
        await self._client._do(_calls.remove_volume(name))
