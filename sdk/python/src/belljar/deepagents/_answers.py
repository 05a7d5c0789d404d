"""What the server says, in the words of deepagents."""

from __future__ import annotations

from deepagents.backends.protocol import ExecuteResponse

from belljar.errors import BelljarError
from belljar.models import Result, SessionInfo

# Shells and `timeout(1)` say so too.
TIMED_OUT = 124
# How much of an output that is too long is shown of its end, where errors are.
_TAIL_SHARE = 0.5

_FILE_ERRORS = {
    "file_not_found": "file_not_found",
    "not_permitted_inside": "permission_denied",
    "is_a_directory": "is_directory",
    "not_a_directory": "invalid_path",
    "not_a_file": "invalid_path",
    "invalid": "invalid_path",
}
# Not about a sandbox that is broken: an agent can make room, or write less.
_TOLD_AS_THEY_ARE = ("no_room_inside", "too_large")


def file_error(error: BelljarError) -> str:
    """What deepagents calls it; raises what an agent can do nothing about."""
    if error.code in _FILE_ERRORS:
        return _FILE_ERRORS[error.code]
    if error.code in _TOLD_AS_THEY_ARE:
        return str(error)
    raise error


def is_absolute(path: str) -> bool:
    return path.startswith("/") and "\0" not in path


def answer(result: Result, output: str, *, limit: float, is_cut: bool) -> ExecuteResponse:
    """The end of a command, with whatever it ended of in the output."""
    exit_code: int = result.exit_code
    said = None
    if result.status == "timeout":
        exit_code, said = TIMED_OUT, f"Command timed out after {limit:g} seconds"
    elif result.status == "oom":
        said = "Command ran out of memory"
    elif result.status == "interrupted":
        said = "Command was interrupted"
    elif result.reason or result.status == "crashed":
        said = result.reason or "Command died"
    if result.dropped:
        lost = result.dropped.stdout_bytes + result.dropped.stderr_bytes
        output = _with_line(output, f"[{lost} more bytes of output were not kept]")
    if said is not None:
        output = _with_line(output, said)
    return ExecuteResponse(output=output, exit_code=exit_code, truncated=is_cut or bool(result.dropped))


def preview(output: str, size: int, where: str) -> str:
    """The beginning and the end of an output that is too long, and where the rest is."""
    raw = output.encode()
    tail = int(size * _TAIL_SHARE)
    head = size - tail
    left_out = len(raw) - head - tail
    told = f"\n\n... [{left_out} of {len(raw)} bytes left out; {where}] ...\n\n"
    return raw[:head].decode(errors="ignore") + told + raw[-tail:].decode(errors="ignore")


def replacement(info: SessionInfo) -> str | None:
    """What an agent must know of a sandbox that is not the one it had; None if it is."""
    if info.replaced is not None:
        return (
            f"[The sandbox of this conversation is a new one: the one before it ended ({info.replaced.because}). "
            "Its files and processes are gone.]"
        )
    if info.how == "restarted":
        return (
            "[The sandbox of this conversation was started again: its files are there, "
            "what ran in it and what was outside of /session is gone.]"
        )
    return None


def _with_line(output: str, line: str) -> str:
    return f"{output}{'' if not output or output.endswith(chr(10)) else chr(10)}{line}"
