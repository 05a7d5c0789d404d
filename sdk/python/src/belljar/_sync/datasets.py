# Generated from ../_aio/datasets.py by scripts/generate_sync.py; change that file.
"""Datasets: files that code in a session works on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from belljar import _calls, _files
from belljar._sync import _io
from belljar._calls import Call
from belljar._files import Progress, Source, Upload
from belljar.errors import BelljarError, IntegrityError, InvalidRequest, NotFound
from belljar.models import Dataset, DatasetList, Exports

if TYPE_CHECKING:
    from belljar._sync.client import Client

# Below this size it is faster to send content than to ask whether the server has it already.
_WORTH_ASKING = 256 << 10


class Datasets:
    """The datasets of a session that was created with `datasets="API"` or `"LOCAL_RO"`.

    >>> with client.session(datasets="API") as session:
    ...     dataset = session.datasets.upload("sales.parquet")
    ...     session.run_code(f"df = pd.read_parquet({dataset.path!r})")
    """

    def __init__(self, client: Client, session_id: str) -> None:
        self._client = client
        self._session_id = session_id

    def list(self) -> DatasetList:
        """Lists the datasets, with formats, columns and sizes where these are known."""
        return self._client._do(_calls.datasets(self._session_id))

    def upload(self, source: Source, name: str | None = None, *, progress: Progress | None = None) -> Dataset:
        """Uploads a path, bytes or a binary file to `/session/data`, where it appears when it is complete.

        `name` is its name there, and may contain folders; the default is the file name of the path. Content that the
        server already has, from an earlier session, is not sent again.
        """
        with _files.source(source) as upload:
            called = name or upload.name
            if not called:
                raise InvalidRequest("a dataset that is not read from a file needs a `name`")
            sha256 = _io.in_thread(upload.sha256)
            if sha256 is not None and (upload.size or 0) >= _WORTH_ASKING:
                known = self._known(called, sha256)
                if known is not None:
                    return known
            dataset = self._send(_calls.upload(self._session_id, called, None), upload, progress)
            if dataset.sha256 is not None and sha256 not in (None, dataset.sha256):
                raise IntegrityError(f"the uploaded content of `{called}` does not match its hash")
            return dataset

    def _known(self, name: str, sha256: str) -> Dataset | None:
        try:
            return self._client._do(_calls.upload(self._session_id, name, sha256))
        except NotFound as error:
            if error.code == "content_unknown":
                return None
            raise

    def _send(self, call: Call[Dataset], upload: Upload, progress: Progress | None) -> Dataset:
        attempts = self._client._attempts(upload.is_repeatable)
        while True:
            upload.rewind()
            try:
                return self._client._put(call, _body(upload, progress), upload.size)
            except BelljarError as error:
                if not upload.is_repeatable:
                    raise
                self._client._wait_before_retry(attempts, error)

    def stage(self, dataset: str, *, refresh: bool = False, wait: bool = True) -> Dataset:
        """Makes the server fetch a dataset from one of its sources (`BELLJAR_DATASET_SOURCES`).

        With `wait=False` this returns at once, and `list` returns the dataset's status.
        """
        return self._client._do(_calls.stage(self._session_id, dataset, refresh=refresh, wait=wait))

    def export(self, names: Sequence[str] | None = None) -> Exports:
        """Copies files from `/session/data` (all, or those named) to the server's exports, as artifacts."""
        return self._client._do(_calls.export(self._session_id, names))


def _body(upload: Upload, progress: Progress | None) -> Iterator[bytes]:
    sent = 0
    while chunk := _io.in_thread(upload.read):
        yield chunk
        sent += len(chunk)
        if progress is not None:
            progress(sent, upload.size)
