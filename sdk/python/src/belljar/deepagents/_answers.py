"""Converts results and errors to the types of deepagents."""

from __future__ import annotations

from deepagents.backends.protocol import ExecuteResponse

from belljar.errors import BelljarError
from belljar.models import Result, SessionInfo

# The exit code of `timeout(1)`.
TIMED_OUT = 124
# Which share of the preview of long output is its end, where errors are.
_TAIL_SHARE = 0.5

_FILE_ERRORS = {
    "file_not_found": "file_not_found",
    "not_permitted_inside": "permission_denied",
    "is_a_directory": "is_directory",
    "not_a_directory": "invalid_path",
    "not_a_file": "invalid_path",
    "invalid": "invalid_path",
}
# Errors that an agent can react to, by removing files or writing less.
_RETURNED_AS_TEXT = ("no_room_inside", "too_large")


def file_error(error: BelljarError) -> str:
    """The name that deepagents has for this error. Raises errors that an agent cannot react to."""
    if error.code in _FILE_ERRORS:
        return _FILE_ERRORS[error.code]
    if error.code in _RETURNED_AS_TEXT:
        return str(error)
    raise error


def is_absolute(path: str) -> bool:
    return path.startswith("/") and "\0" not in path


def answer(result: Result, output: str, *, limit: float, is_cut: bool) -> ExecuteResponse:
    """The response for a command. If the command did not end normally, the output says why."""
    exit_code: int = result.exit_code
    ending = None
    if result.status == "timeout":
        exit_code, ending = TIMED_OUT, f"Command timed out after {limit:g} seconds"
    elif result.status == "oom":
        ending = "Command ran out of memory"
    elif result.status == "interrupted":
        ending = "Command was interrupted"
    elif result.reason or result.status == "crashed":
        ending = result.reason or "Command crashed"
    if result.dropped:
        lost = result.dropped.stdout_bytes + result.dropped.stderr_bytes
        output = _with_line(output, f"[{lost} more bytes of output were not kept]")
    if ending is not None:
        output = _with_line(output, ending)
    return ExecuteResponse(output=output, exit_code=exit_code, truncated=is_cut or bool(result.dropped))


def preview(output: str, size: int, where: str) -> str:
    """The beginning and the end of long output, and where the rest is."""
    raw = output.encode()
    tail = int(size * _TAIL_SHARE)
    head = size - tail
    left_out = len(raw) - head - tail
    note = f"\n\n... [{left_out} of {len(raw)} bytes left out; {where}] ...\n\n"
    return raw[:head].decode(errors="ignore") + note + raw[-tail:].decode(errors="ignore")


def replacement(info: SessionInfo) -> str | None:
    """The notice for an agent whose sandbox was replaced; None if it was not."""
    if info.replaced is not None:
        return (
            f"[The sandbox of this conversation is a new one: the one before it ended ({info.replaced.because}). "
            "Its files and processes are gone.]"
        )
    if info.how == "restarted":
        return (
            "[The sandbox of this conversation was started again: the files in /session are there, "
            "its processes and all other files are gone.]"
        )
    return None


def _with_line(output: str, line: str) -> str:
    return f"{output}{'' if not output or output.endswith(chr(10)) else chr(10)}{line}"
