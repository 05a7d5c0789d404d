"""Results as text for a model: of limited length, with what happened, what was cut and what is lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from belljar._manager import ExecResult
from belljar.langgraph._images import Content, Image, with_images
from belljar.models import Artifact, Bundle, Refusal

# The default limit for output, in characters: about 5000 tokens.
MAX_CHARS = 20_000
_MAX_LISTED = 50


def answer(result: ExecResult, images: Sequence[Image], max_chars: int) -> tuple[Content, dict[str, Any]]:
    """What a tool returns for a result: content for the model, and the whole result for programs."""
    return with_images(text_of(result, max_chars), images), result.model_dump(mode="json")


def text_of(result: ExecResult, max_chars: int = MAX_CHARS) -> str:
    """A result as text. Stdout has at most `max_chars` characters, every other section a quarter of that."""
    less = max(200, max_chars // 4)
    parts = [note(result.notice), section("", clip(result.stdout, max_chars) + _dropped(result.dropped.stdout_bytes))]
    parts.append(section("stderr", clip(result.stderr, less) + _dropped(result.dropped.stderr_bytes)))
    not_kept = f"\n[... {result.dropped.results} more values were not kept ...]" if result.dropped.results else ""
    parts.append(section("result", clip("\n".join(_values(result.results)), less) + not_kept))
    if result.status != "timeout" and result.error is not None:
        parts.append(section("error", clip(result.error.traceback, less)))
    parts += [_outcome(result), list_artifacts(result.artifacts, result.artifacts_refused)]
    return "\n".join(part for part in parts if part) or "(The code ran and printed nothing.)"


def _outcome(result: ExecResult) -> str:
    """How the execution ended, if it did not end normally."""
    text = ""
    if result.status == "timeout":
        text = f"It took too long and was stopped after {result.duration_ms / 1000:.1f} s."
    elif result.error is None and not result.ok:
        text = f"{_capitalized(result._in_a_sentence())}."
    if result.kernel_state == "lost":
        text += " All variables and imports are gone; the files in /session are still there."
    return section("status", text.strip())


def _values(results: Sequence[Bundle]) -> list[str]:
    return [bundle.text or "(an image)" for bundle in results if bundle.text is not None or bundle.is_image]


def note(notice: str | None) -> str:
    return f"NOTE: {notice}" if notice else ""


def section(name: str, text: str) -> str:
    if not text.strip():
        return ""
    return f"[{name}]\n{text.rstrip()}" if name else text.rstrip()


def clip(text: str, limit: int) -> str:
    """The beginning and the end of a text, with a note about how much was cut between them."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit - limit * 2 // 3
    cut = len(text) - head - tail
    return f"{text[:head]}\n[... {cut} of {len(text)} characters were cut here ...]\n{text[-tail:]}"


def _dropped(count: int) -> str:
    return f"\n[... {count} more bytes of output were not kept; write large output to a file ...]" if count else ""


def list_artifacts(artifacts: Sequence[Artifact], refused: Sequence[Refusal] = ()) -> str:
    lines = [f"- {line_of(artifact)}" for artifact in artifacts[:_MAX_LISTED]]
    if len(artifacts) > _MAX_LISTED:
        lines.append(f"- and {len(artifacts) - _MAX_LISTED} more")
    lines += [f"- {refusal.path} was NOT kept: {refusal.reason}" for refusal in refused[:_MAX_LISTED]]
    return section("artifacts", "\n".join(lines))


def line_of(artifact: Artifact) -> str:
    kind = f", {artifact.mime.split(';')[0]}" if artifact.mime else ""
    return f"{artifact.name} ({size_of(artifact.size)}{kind}): {link_of(artifact)}"


def link_of(artifact: Artifact) -> str:
    """A link that works: the server's, or to the file itself if the server has no address."""
    if artifact.url is not None and "://" in artifact.url:
        return artifact.url
    if artifact.host_path is not None:
        return PurePosixPath(artifact.host_path).as_uri()
    return artifact.url or artifact.path


def size_of(size: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def _capitalized(text: str) -> str:
    return text[:1].upper() + text[1:]
