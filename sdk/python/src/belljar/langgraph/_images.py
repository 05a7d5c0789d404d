"""Images as content blocks, for models that can see."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

from belljar._manager import ExecResult
from belljar.models import Artifact

#: The content that a tool returns: text, or text followed by images.
Content = str | list[str | dict[str, Any]]
#: A MIME type and bytes.
Image = tuple[str, bytes]

# The image types that model providers accept, and limits that keep the number of tokens reasonable.
IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
MAX_IMAGE_BYTES = 4 << 20
MAX_IMAGES = 4


def displayed(result: ExecResult) -> list[Image]:
    """The images that the code displayed."""
    found = []
    for bundle in result.results:
        mime = next((mime for mime in IMAGE_TYPES if isinstance(bundle.data.get(mime), str)), None)
        if mime is not None:
            found.append((mime, bundle.binary(mime) or b""))
    return found


def saved(result: ExecResult) -> list[tuple[Artifact, bool]]:
    """The images among the artifacts, and whether each is to be fetched."""
    found = [artifact for artifact in result.artifacts if artifact.mime in IMAGE_TYPES and artifact.id]
    return [
        (artifact, number < MAX_IMAGES and artifact.size <= MAX_IMAGE_BYTES)
        for number, artifact in enumerate(sorted(found, key=lambda image: image.size > MAX_IMAGE_BYTES))
    ]


def with_images(text: str, images: Sequence[Image]) -> Content:
    """The text, followed by as many images as the limits allow."""
    fitting = [(mime, data) for mime, data in images if data and len(data) <= MAX_IMAGE_BYTES][:MAX_IMAGES]
    left_out = len(images) - len(fitting)
    if left_out:
        text += f"\n[... {left_out} of {len(images)} images are not shown: too many, too large or not available ...]"
    if not fitting:
        return text
    blocks: list[str | dict[str, Any]] = [{"type": "text", "text": text}]
    for mime, data in fitting:
        blocks.append({"type": "image", "base64": base64.b64encode(data).decode(), "mime_type": mime})
    return blocks


def image_type(content: bytes) -> str | None:
    """The MIME type of an image that models accept, by its first bytes."""
    signatures = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}
    found = next((mime for magic, mime in signatures.items() if content.startswith(magic)), None)
    if found is None and content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        found = "image/webp"
    return found
