"""Pictures as content blocks, for models that can see."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any, Union

from belljar._aio.client import AsyncClient
from belljar._sync.client import Client
from belljar.manager import ExecResult
from belljar.models import Artifact

#: What a tool returns as its content: text, or text followed by pictures.
Content = Union[str, list[Union[str, dict[str, Any]]]]
#: A MIME type and bytes.
Picture = tuple[str, bytes]

# What providers take as a picture; how large and how many are worth their tokens.
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
MAX_IMAGE_BYTES = 4 << 20
MAX_IMAGES = 4


def shown_images(client: Client, result: ExecResult) -> list[Picture]:
    """What the code showed, else what it saved: rarely is one without the other another picture."""
    saved = [(str(artifact.mime), client.artifacts.read(artifact)) for artifact in _to_fetch(result)]
    return _shown(result) + saved


async def ashown_images(client: AsyncClient, result: ExecResult) -> list[Picture]:
    """The same as `shown_images`, to be awaited."""
    saved = [(str(artifact.mime), await client.artifacts.read(artifact)) for artifact in _to_fetch(result)]
    return _shown(result) + saved


def _shown(result: ExecResult) -> list[Picture]:
    shown = []
    for bundle in result.results:
        mime = next((mime for mime in IMAGE_TYPES if isinstance(bundle.data.get(mime), str)), None)
        if mime is not None:
            shown.append((mime, bundle.binary(mime) or b""))
    return shown


def _to_fetch(result: ExecResult) -> list[Artifact]:
    if _shown(result):
        return []
    pictures = [artifact for artifact in result.artifacts if artifact.mime in IMAGE_TYPES and artifact.id]
    return [artifact for artifact in pictures if artifact.size <= MAX_IMAGE_BYTES][:MAX_IMAGES]


def with_pictures(text: str, pictures: Sequence[Picture]) -> Content:
    """The text and as many pictures as are reasonable."""
    fitting = [(mime, data) for mime, data in pictures if data and len(data) <= MAX_IMAGE_BYTES][:MAX_IMAGES]
    left_out = len(pictures) - len(fitting)
    if left_out:
        text += f"\n[... {left_out} of {len(pictures)} pictures are too many or too large to be shown ...]"
    if not fitting:
        return text
    blocks: list[str | dict[str, Any]] = [{"type": "text", "text": text}]
    for mime, data in fitting:
        blocks.append({"type": "image", "base64": base64.b64encode(data).decode(), "mime_type": mime})
    return blocks
