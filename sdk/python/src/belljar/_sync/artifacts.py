# Made of ../_aio/artifacts.py by scripts/generate_sync.py; change that one.
"""Files that code left behind."""

from __future__ import annotations

import builtins
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from belljar import _calls, _files, _retry
from belljar._sync import _io
from belljar._calls import Call
from belljar._files import Progress, StrPath
from belljar.errors import BelljarError, InvalidRequest, NotFound, ProtocolError, ServerUnavailable
from belljar.models import Artifact, Link

if TYPE_CHECKING:
    from belljar._sync.client import Client

# The largest page of a list that the server gives.
_PAGE = 1000


class Artifacts:
    """The artifacts of a session (`session.artifacts`), or of all (`client.artifacts`).

    >>> result = session.run_code("df.to_csv('/session/artifacts/out.csv')")
    >>> session.artifacts.download(result.artifacts[0], "out.csv")
    PosixPath('out.csv')
    """

    def __init__(self, client: Client, session_id: str | None = None) -> None:
        self._client = client
        self._session_id = session_id

    def list(self, *, exec_id: str | None = None, limit: int | None = 100) -> builtins.list[Artifact]:
        """The newest first; all of them with `limit=None`."""
        found: list[Artifact] = []
        before = None
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(found))
            call = _calls.artifacts(self._session_id, exec_id=exec_id, limit=size, before=before)
            page = self._client._do(call)
            found += page.items
            before = page.next
            if before is None:
                break
        return found

    def get(self, artifact_id: str) -> Artifact:
        """What is known of one artifact, with a fresh link."""
        return self._client._do(_calls.artifact(artifact_id))

    def find(self, name: str) -> Artifact:
        """The newest artifact of this name."""
        for artifact in self.list(limit=None):
            if artifact.name == name:
                return artifact
        raise NotFound(f"there is no artifact called `{name}`", code="artifact_not_found")

    def url(self, artifact: Artifact | str) -> Link:
        """A fresh link, for whoever has it, until it expires."""
        return self._client._do(_calls.artifact_link(_id(artifact)))

    def delete(self, artifact: Artifact | str) -> None:
        """Forgets an artifact."""
        self._client._do(_calls.delete_artifact(_id(artifact)))

    def read(
        self, artifact: Artifact | str, *, start: int = 0, end: int | None = None, progress: Progress | None = None
    ) -> bytes:
        """The content, or its bytes from `start` to before `end`. A whole one is checked against its hash."""
        known = self._known(artifact)
        content = bytearray()
        for chunk in self._chunks(known, start, end, progress):
            content += chunk
        is_whole = start == 0 and len(content) == known.size
        return _io.work(_files.check, known, bytes(content)) if is_whole else bytes(content)

    def open(self, artifact: Artifact | str, *, progress: Progress | None = None) -> io.BytesIO:
        """The content as a file, for all that reads files.

        >>> pd.read_parquet(session.artifacts.open(artifact))
        """
        return io.BytesIO(self.read(artifact, progress=progress))

    def download(
        self, artifact: Artifact | str, to: StrPath, *, resume: bool = True, progress: Progress | None = None
    ) -> Path:
        """Saves the content as the file `to`, or below its own name in the directory `to`.

        The file appears when all of it has come and matches its hash. A download that was broken off
        is gone on with the next time, unless `resume` is false.
        """
        known = self._known(artifact)
        arriving = _files.Arriving(known, to)
        try:
            _io.work(arriving.open, resume)
            for chunk in self._chunks(known, arriving.size, None, progress):
                _io.work(arriving.write, chunk)
            return _io.work(arriving.finish)
        finally:
            arriving.close()

    def chunks(
        self, artifact: Artifact | str, *, start: int = 0, end: int | None = None
    ) -> Iterator[bytes]:
        """The content piece by piece, for what is too large to hold. It is not checked."""
        for chunk in self._chunks(self._known(artifact), start, end, None):
            yield chunk

    def _known(self, artifact: Artifact | str) -> Artifact:
        if isinstance(artifact, str):
            return self.get(artifact)
        _id(artifact)
        return artifact

    def _chunks(
        self, artifact: Artifact, start: int, end: int | None, progress: Progress | None
    ) -> Iterator[bytes]:
        """The content, going on where it was whenever the connection is lost."""
        stop = artifact.size if end is None else min(end, artifact.size)
        if start < 0 or (end is not None and end < start):
            raise InvalidRequest(f"there are no bytes from {start} to before {end}")
        position = start
        attempts = self._client._attempts(is_safe=True)
        while position < stop:
            try:
                response = self._content(artifact, position, stop)
                try:
                    for chunk in response.iter_raw(_files.CHUNK):
                        position += len(chunk)
                        if progress is not None:
                            progress(position, stop)
                        yield chunk
                        attempts = self._client._attempts(is_safe=True)
                except (httpx.HTTPError, httpx.StreamError) as error:
                    raise ServerUnavailable(f"the connection was lost after {position} bytes: {error}") from error
                finally:
                    response.close()
                if position < stop:
                    raise ServerUnavailable(f"the connection ended after {position} of {stop} bytes")
            except BelljarError as error:
                self._client._endure(attempts, error)

    def _content(self, artifact: Artifact, start: int, stop: int) -> httpx.Response:
        # A fresh link each time: an old one may have expired.
        link = self._client._do(_calls.artifact_link(_id(artifact)))
        call: Call[None] = Call("GET", _files.link_path(link.url), lambda _: None, is_safe=True)
        is_part = start > 0 or stop < artifact.size
        more = (("range", f"bytes={start}-{stop - 1}"),) if is_part else ()
        response = self._client._send(self._client._requests.of(call, accept="*/*", more=more))
        if response.is_success and (not is_part or _files.content_range(response.headers) == start):
            return response
        body = self._client._read(response)
        if response.is_success:
            raise ProtocolError("the server does not send the part of the artifact that was asked for")
        raise _retry.understood(response, body)


def _id(artifact: Artifact | str) -> str:
    if isinstance(artifact, str):
        return artifact
    if artifact.id is None:
        raise InvalidRequest(f"the artifact `{artifact.name}` was not kept by a server; it is at {artifact.host_path}")
    return artifact.id
