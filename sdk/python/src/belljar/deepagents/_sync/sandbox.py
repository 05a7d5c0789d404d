# Generated from ../_aio/sandbox.py by scripts/generate_sync.py; change that file.
"""Commands and files of a `BelljarSandbox`."""

from __future__ import annotations

from deepagents.backends.protocol import ExecuteResponse, FileDownloadResponse, FileUploadResponse

from belljar._sync import _io
from belljar._sync.files import Files
from belljar._sync.session import Session
from belljar._calls import new_exec_id
from belljar.deepagents import _answers
from belljar.deepagents._state import SandboxState, arguments_of, output_path, script_path
from belljar.errors import BelljarError, InvalidRequest, NotFound, SessionEnded
from belljar.models import Result, SessionInfo

# How many bytes of output that is too long the agent gets.
_PREVIEW = 64 << 10
# The most output that a server keeps.
_MAX_OUTPUT = "64M"


class SandboxCalls(SandboxState):
    """The calls of a `BelljarSandbox` to the server."""

    def stop_thread(self, thread_id: str) -> bool:
        """Stops the session of a conversation; false if there is none."""
        key = self._key_of(thread_id)
        self._known.pop(key, None)
        alive = [found for found in self._client.sessions(key=key) if found.info.is_alive]
        for session in alive:
            session.stop()
        return bool(alive)

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Runs a command in `/session`, and returns its output on both streams. If the caller is cancelled, the command
        is interrupted."""
        limit = self._limit(timeout)
        info = self._open()
        exec_id = new_exec_id()
        try:
            script = script_path(command, exec_id)
            if script is not None:
                Files(self._client, info.id).write(script, command.encode())
            result = Session(self._client, info).run_command(
                arguments_of(command, script),
                timeout=limit,
                max_output=_MAX_OUTPUT,
                on_output=self._on_output(),
                exec_id=exec_id,
            )
            output, is_cut = self._shortened(info, exec_id, result)
        except InvalidRequest as error:
            return ExecuteResponse(output=str(error), exit_code=1)
        except (SessionEnded, NotFound) as error:
            self._forget(error)
            self._open()
            return self._not_run(error)
        return self._answer(result, output, limit, is_cut)

    def _shortened(self, info: SessionInfo, exec_id: str, result: Result) -> tuple[str, bool]:
        """The output, and whether it was cut. Output that is too long is written to a file inside."""
        output = result.stdout + result.stderr
        if not self._is_too_long(output):
            return output, False
        path = output_path(exec_id)
        try:
            Files(self._client, info.id).write(path, output.encode())
            where = f"{'what was kept' if result.dropped else 'all of it'} is in {path}"
        except BelljarError as error:
            where = f"it could not be stored: {_answers.file_error(error)}"
        return _answers.preview(output, _PREVIEW, where), True

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Writes files at absolute paths. Missing directories are created."""
        session_id = (self._open()).id
        errors = _io.all_of([self._upload(session_id, path, content) for path, content in files])
        return [FileUploadResponse(path=path, error=error) for (path, _), error in zip(files, errors)]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Reads files at absolute paths."""
        session_id = (self._open()).id
        return _io.all_of([self._download(session_id, path) for path in paths])

    def _upload(self, session_id: str, path: str, content: bytes) -> str | None:
        if not _answers.is_absolute(path):
            return "invalid_path"
        try:
            Files(self._client, session_id).write(path, content)
        except BelljarError as error:
            return self._file_error(error)
        return None

    def _download(self, session_id: str, path: str) -> FileDownloadResponse:
        if not _answers.is_absolute(path):
            return FileDownloadResponse(path=path, error="invalid_path")
        try:
            content = Files(self._client, session_id).read(path)
        except BelljarError as error:
            return FileDownloadResponse(path=path, error=self._file_error(error))
        return FileDownloadResponse(path=path, content=content)

    def _open(self) -> SessionInfo:
        known = self._find()
        if known is not None:
            return known
        key = self._current_key()
        session = self._client.session(key, **self._options)
        return self._remember(key, session.info)
