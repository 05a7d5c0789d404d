"""What code in a session works on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from belljar import _calls, _files
from belljar._aio import _io
from belljar._calls import Call
from belljar._files import Progress, Source, Upload
from belljar.errors import BelljarError, IntegrityError, InvalidRequest, NotFound
from belljar.models import Dataset, DatasetList, Exports

if TYPE_CHECKING:
    from belljar._aio.client import AsyncClient

# Below this it is cheaper to send something than to ask whether that is needed.
_WORTH_ASKING = 256 << 10


class AsyncDatasets:
    """The datasets of a session that was made with `datasets="API"` or `"LOCAL_RO"`.

    >>> async with client.session(datasets="API") as session:
    ...     dataset = await session.datasets.upload("sales.parquet")
    ...     await session.run_code(f"df = pd.read_parquet({dataset.path!r})")
    """

    def __init__(self, client: AsyncClient, session_id: str) -> None:
        self._client = client
        self._session_id = session_id

    async def list(self) -> DatasetList:
        """What there is, with formats, columns and sizes where they are known."""
        return await self._client._do(_calls.datasets(self._session_id))

    async def upload(self, source: Source, name: str | None = None, *, progress: Progress | None = None) -> Dataset:
        """Brings a path, bytes or a binary file into `/session/data`, where it appears when all of it has come.

        `name` is what to call it there, folders allowed; a path's own name unless told. Content that
        the server has already, from an earlier session, is not sent again.
        """
        with _files.source(source) as upload:
            called = name or upload.name
            if not called:
                raise InvalidRequest("a dataset that comes from no file needs a `name`")
            sha256 = await _io.work(upload.sha256)
            if sha256 is not None and (upload.size or 0) >= _WORTH_ASKING:
                known = await self._known(called, sha256)
                if known is not None:
                    return known
            dataset = await self._send(_calls.upload(self._session_id, called, None), upload, progress)
            if dataset.sha256 is not None and sha256 not in (None, dataset.sha256):
                raise IntegrityError(f"what arrived of `{called}` is not what was sent")
            return dataset

    async def _known(self, name: str, sha256: str) -> Dataset | None:
        try:
            return await self._client._do(_calls.upload(self._session_id, name, sha256))
        except NotFound as error:
            if error.code == "content_unknown":
                return None
            raise

    async def _send(self, call: Call[Dataset], upload: Upload, progress: Progress | None) -> Dataset:
        attempts = self._client._attempts(upload.is_repeatable)
        while True:
            upload.rewind()
            try:
                return await self._client._put(call, _body(upload, progress), upload.size)
            except BelljarError as error:
                if not upload.is_repeatable:
                    raise
                await self._client._endure(attempts, error)

    async def stage(self, dataset: str, *, refresh: bool = False, wait: bool = True) -> Dataset:
        """Has the server fetch a dataset from one of its sources (`BELLJAR_DATASET_SOURCES`).

        With `wait=False` this returns at once, and `list` tells what became of it.
        """
        return await self._client._do(_calls.stage(self._session_id, dataset, refresh=refresh, wait=wait))

    async def export(self, names: Sequence[str] | None = None) -> Exports:
        """Copies files of `/session/data` (all, unless named) to the server's exports, and makes artifacts of them."""
        return await self._client._do(_calls.export(self._session_id, names))


async def _body(upload: Upload, progress: Progress | None) -> AsyncIterator[bytes]:
    sent = 0
    while chunk := await _io.work(upload.read):
        yield chunk
        sent += len(chunk)
        if progress is not None:
            progress(sent, upload.size)
