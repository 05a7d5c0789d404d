"""Artifacts: files that code saved for its user."""

from __future__ import annotations

import builtins
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from belljar import _calls, _files, _retry
from belljar._aio import _io
from belljar._calls import Call
from belljar._files import Progress, StrPath
from belljar.errors import BelljarError, InvalidRequest, NotFound, ProtocolError, ServerUnavailable
from belljar.models import Artifact, Link

if TYPE_CHECKING:
    from belljar._aio.client import AsyncClient

# The largest page of a list that the server returns.
_PAGE = 1000


class AsyncArtifacts:
    """The artifacts of one session (`session.artifacts`), or of all (`client.artifacts`).

    >>> result = await session.run_code("df.to_csv('/session/artifacts/out.csv')")
    >>> await session.artifacts.download(result.artifacts[0], "out.csv")
    PosixPath('out.csv')
    """

    def __init__(self, client: AsyncClient, session_id: str | None = None) -> None:
        self._client = client
        self._session_id = session_id

    async def list(self, *, exec_id: str | None = None, limit: int | None = 100) -> builtins.list[Artifact]:
        """Lists artifacts, the newest first; `limit=None` lists all of them."""
        found: list[Artifact] = []
        before = None
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(found))
            call = _calls.artifacts(self._session_id, exec_id=exec_id, limit=size, before=before)
            page = await self._client._do(call)
            found += page.items
            before = page.next
            if before is None:
                break
        return found

    async def get(self, artifact_id: str) -> Artifact:
        """One artifact, with a new link."""
        return await self._client._do(_calls.artifact(artifact_id))

    async def find(self, name: str) -> Artifact:
        """The newest artifact with this name."""
        for artifact in await self.list(limit=None):
            if artifact.name == name:
                return artifact
        raise NotFound(f"there is no artifact called `{name}`", code="artifact_not_found")

    async def url(self, artifact: Artifact | str) -> Link:
        """A new link, which works without an API key until it expires."""
        return await self._client._do(_calls.artifact_link(_id(artifact)))

    async def delete(self, artifact: Artifact | str) -> None:
        """Deletes an artifact."""
        await self._client._do(_calls.delete_artifact(_id(artifact)))

    async def read(
        self, artifact: Artifact | str, *, start: int = 0, end: int | None = None, progress: Progress | None = None
    ) -> bytes:
        """The content, or its bytes from `start` to before `end`. Complete content is checked against its hash."""
        known = await self._known(artifact)
        content = bytearray()
        async for chunk in self._chunks(known, start, end, progress):
            content += chunk
        is_whole = start == 0 and len(content) == known.size
        return await _io.in_thread(_files.check, known, bytes(content)) if is_whole else bytes(content)

    async def open(self, artifact: Artifact | str, *, progress: Progress | None = None) -> io.BytesIO:
        """The content as a file object.

        >>> pd.read_parquet(await session.artifacts.open(artifact))
        """
        return io.BytesIO(await self.read(artifact, progress=progress))

    async def download(
        self, artifact: Artifact | str, to: StrPath, *, resume: bool = True, progress: Progress | None = None
    ) -> Path:
        """Saves the content as the file `to`, or under its own name in the directory `to`.

        The file appears when it is complete and matches its hash. The next call continues an incomplete download,
        unless `resume` is false.
        """
        known = await self._known(artifact)
        arriving = _files.Arriving(known, to)
        try:
            await _io.in_thread(arriving.open, resume)
            async for chunk in self._chunks(known, arriving.size, None, progress):
                await _io.in_thread(arriving.write, chunk)
            return await _io.in_thread(arriving.finish)
        finally:
            arriving.close()

    async def chunks(
        self, artifact: Artifact | str, *, start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        """The content in pieces, for content that does not fit into memory. It is not checked against its hash."""
        async for chunk in self._chunks(await self._known(artifact), start, end, None):
            yield chunk

    async def _known(self, artifact: Artifact | str) -> Artifact:
        if isinstance(artifact, str):
            return await self.get(artifact)
        _id(artifact)
        return artifact

    async def _chunks(
        self, artifact: Artifact, start: int, end: int | None, progress: Progress | None
    ) -> AsyncIterator[bytes]:
        """The content; a lost connection is resumed where it was."""
        stop = artifact.size if end is None else min(end, artifact.size)
        if start < 0 or (end is not None and end < start):
            raise InvalidRequest(f"`start` is {start} and `end` is {end}: expected 0 <= start <= end")
        position = start
        attempts = self._client._attempts(is_safe=True)
        while position < stop:
            try:
                response = await self._content(artifact, position, stop)
                try:
                    async for chunk in response.aiter_raw(_files.CHUNK):
                        position += len(chunk)
                        if progress is not None:
                            progress(position, stop)
                        yield chunk
                        attempts = self._client._attempts(is_safe=True)
                except (httpx.HTTPError, httpx.StreamError) as error:
                    raise ServerUnavailable(f"the connection was lost after {position} bytes: {error}") from error
                finally:
                    await response.aclose()
                if position < stop:
                    raise ServerUnavailable(f"the connection ended after {position} of {stop} bytes")
            except BelljarError as error:
                await self._client._wait_before_retry(attempts, error)

    async def _content(self, artifact: Artifact, start: int, stop: int) -> httpx.Response:
        # A new link each time, as an old one may have expired.
        link = await self._client._do(_calls.artifact_link(_id(artifact)))
        call: Call[None] = Call("GET", _files.link_path(link.url), lambda _: None, is_safe=True)
        is_part = start > 0 or stop < artifact.size
        more = (("range", f"bytes={start}-{stop - 1}"),) if is_part else ()
        response = await self._client._send(self._client._requests.of(call, accept="*/*", more=more))
        if response.is_success and (not is_part or _files.content_range(response.headers) == start):
            return response
        body = await self._client._read(response)
        if response.is_success:
            raise ProtocolError("the server did not send the requested range of the artifact")
        raise _retry.refusal_of(response, body)


def _id(artifact: Artifact | str) -> str:
    if isinstance(artifact, str):
        return artifact
    if artifact.id is None:
        raise InvalidRequest(f"the server did not store the artifact `{artifact.name}`; it is at {artifact.host_path}")
    return artifact.id
