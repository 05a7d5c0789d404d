"""Answers of the tools for files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from belljar._file_calls import FileInfo, FileList
from belljar.langgraph._images import MAX_IMAGE_BYTES, image_type, with_images
from belljar.langgraph._render import clip, note, size_of
from belljar.langgraph._tool import Answer, origin
from belljar.manager import Opened

# How many bytes of a file are read, and how many entries of a directory are listed.
MAX_READ = 4 << 20
_MAX_ENTRIES = 500
# How many bytes decide whether a file is text.
_LOOKED_AT = 8192


@dataclass(frozen=True)
class Part:
    """Which lines of a file to return, and how many characters at most."""

    start_line: int
    max_lines: int
    max_chars: int


def listed(opened: Opened[Any], path: str, listing: FileList) -> Answer:
    lines = [_entry(file) for file in listing.files[:_MAX_ENTRIES]]
    more = listing.more + max(0, len(listing.files) - _MAX_ENTRIES)
    if more:
        lines.append(f"... and at least {more} more")
    text = "\n".join([*_notes(opened), *(lines or [f"{path} is empty."])])
    return text, {"status": "ok", **listing.model_dump(mode="json"), **origin(opened)}


def content(opened: Opened[Any], info: FileInfo, read: bytes, part: Part, *, images: bool) -> Answer:
    artifact = {"status": "ok", "file": info.model_dump(mode="json"), **origin(opened)}
    if not _is_binary(read):
        return "\n".join([*_notes(opened), *_text(info, read, part)]), artifact
    mime = image_type(read)
    if images and mime is not None and info.size <= MAX_IMAGE_BYTES:
        text = "\n".join([*_notes(opened), f"{info.path} is an image of {size_of(info.size)}."])
        return with_images(text, [(mime, read)]), artifact
    kind = f"{mime or 'binary'}, {size_of(info.size)}"
    return "\n".join([*_notes(opened), f"{info.path} is not a text file ({kind}); use code to read it."]), artifact


def done(opened: Opened[Any], what: str, path: str, info: FileInfo | None) -> Answer:
    size = f" ({size_of(info.size)})" if info is not None and info.is_file else ""
    artifact = {"status": "ok", "file": None if info is None else info.model_dump(mode="json"), **origin(opened)}
    return "\n".join([*_notes(opened), f"{what} {path}{size}."]), artifact


def _text(info: FileInfo, read: bytes, part: Part) -> list[str]:
    lines = read.decode("utf-8", "replace").splitlines()
    first = part.start_line - 1
    wanted = lines[first : first + part.max_lines]
    answer = [clip("\n".join(wanted), part.max_chars) if wanted else "(There is nothing in this part.)"]
    last = first + len(wanted)
    if last < len(lines) or first > 0:
        answer.append(f"[lines {part.start_line} to {last} of {len(lines)}]")
    if info.size > len(read):
        shown, whole = size_of(len(read)), size_of(info.size)
        answer.append(f"[only the first {shown} of {whole} can be read with this tool; use execute_shell for the rest]")
    return answer


def _notes(opened: Opened[Any]) -> list[str]:
    return [note(opened.notice)] if opened.notice else []


def _entry(file: FileInfo) -> str:
    if file.is_directory:
        return f"{file.path}/"
    return f"{file.path} ({size_of(file.size)})" if file.is_file else f"{file.path} ({file.kind})"


def _is_binary(read: bytes) -> bool:
    head = read[:_LOOKED_AT]
    if b"\0" in head:
        return True
    try:
        head.decode()
    except UnicodeDecodeError as error:
        # The cut may have split the last character, which has at most four bytes.
        return error.start < len(head) - 4
    return False
