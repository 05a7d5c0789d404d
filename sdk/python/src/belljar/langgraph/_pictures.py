"""Pictures as content blocks, for models that can see."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from belljar._aio.client import AsyncClient
from belljar._sync.client import Client
from belljar.errors import BelljarError
from belljar.manager import ExecResult
from belljar.models import Artifact

#: What a tool returns as its content: text, or text followed by pictures.
Content = str | list[str | dict[str, Any]]
#: A MIME type and bytes.
Picture = tuple[str, bytes]

# What providers take as a picture; how large and how many are worth their tokens.
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
MAX_IMAGE_BYTES = 4 << 20
MAX_IMAGES = 4


def shown_images(client: Client, result: ExecResult) -> list[Picture]:
    """What the code showed, else what it saved: rarely is one without the other another picture.

    Those that are not to be had are without bytes. The code has run, whatever becomes of its pictures.
    """
    pictures = _shown(result)
    for artifact, is_wanted in [] if pictures else _saved(result):
        try:
            content = client.artifacts.read(artifact) if is_wanted else b""
        except BelljarError:
            content = b""
        pictures.append((str(artifact.mime), content))
    return pictures


async def ashown_images(client: AsyncClient, result: ExecResult) -> list[Picture]:
    """The same as `shown_images`, to be awaited."""
    pictures = _shown(result)
    for artifact, is_wanted in [] if pictures else _saved(result):
        try:
            content = await client.artifacts.read(artifact) if is_wanted else b""
        except BelljarError:
            content = b""
        pictures.append((str(artifact.mime), content))
    return pictures


def _shown(result: ExecResult) -> list[Picture]:
    shown = []
    for bundle in result.results:
        mime = next((mime for mime in IMAGE_TYPES if isinstance(bundle.data.get(mime), str)), None)
        if mime is not None:
            shown.append((mime, bundle.binary(mime) or b""))
    return shown


def _saved(result: ExecResult) -> list[tuple[Artifact, bool]]:
    """Pictures among the artifacts, and which of them are worth fetching."""
    pictures = [artifact for artifact in result.artifacts if artifact.mime in IMAGE_TYPES and artifact.id]
    return [
        (artifact, number < MAX_IMAGES and artifact.size <= MAX_IMAGE_BYTES)
        for number, artifact in enumerate(sorted(pictures, key=lambda picture: picture.size > MAX_IMAGE_BYTES))
    ]


def with_pictures(text: str, pictures: Sequence[Picture]) -> Content:
    """The text and as many pictures as are reasonable."""
    fitting = [(mime, data) for mime, data in pictures if data and len(data) <= MAX_IMAGE_BYTES][:MAX_IMAGES]
    left_out = len(pictures) - len(fitting)
    if left_out:
        text += f"\n[... {left_out} of {len(pictures)} pictures are not shown: too many, too large or out of reach ...]"
    if not fitting:
        return text
    blocks: list[str | dict[str, Any]] = [{"type": "text", "text": text}]
    for mime, data in fitting:
        blocks.append({"type": "image", "base64": base64.b64encode(data).decode(), "mime_type": mime})
    return blocks
