"""Volumes: files that outlive sessions."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from belljar import _calls
from belljar._options import Size
from belljar.models import Volume

if TYPE_CHECKING:
    from belljar._aio.client import AsyncClient


class AsyncVolumes:
    """The volumes of this tenant (`client.volumes`): named directories of limited size that sessions can share.

    >>> await client.volumes.create("models", size="2G")
    >>> async with client.session(volumes={"models": "rw"}) as session:
    ...     await session.run_code("open('/volumes/models/a', 'w').write('kept')")
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(self, name: str, *, size: Size | None = None) -> Volume:
        """Creates an empty volume of at most `size` bytes (or text such as `"512M"`; the server's default if left out).
        Raises `Conflict` if the name is taken."""
        return await self._client._do(_calls.create_volume(name, size))

    async def list(self) -> builtins.list[Volume]:
        """All volumes, sorted by name. Only `get` returns how much of a volume is used."""
        return await self._client._do(_calls.volumes())

    async def get(self, name: str) -> Volume:
        """One volume, with how much of it is used and by which sessions."""
        return await self._client._do(_calls.volume(name))

    async def remove(self, name: str) -> None:
        """Removes a volume with everything in it. Raises `Conflict` while a session uses it."""
        await self._client._do(_calls.remove_volume(name))
