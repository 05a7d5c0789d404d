"""Shows results in Jupyter.

HTML from a sandbox is shown in a frame without scripts and without an origin: in the notebook's own page, scripts could
do everything that the user can.
"""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from belljar.models import Bundle, Result

# A frame without scripts cannot report its height, so it is estimated from the number of rows.
_ROW_HEIGHT = 27
_LEAST_HEIGHT = 60
_MOST_HEIGHT = 480


def show_result(result: Result) -> dict[str, Any]:
    return show_bundles(result.stdout, result.results, _error(result), result.stderr)


def show_bundles(stdout: str, bundles: list[Bundle], error: str | None, stderr: str = "") -> dict[str, Any]:
    texts = [stdout, stderr, *(f"{bundle.text or ''}\n" for bundle in bundles), error or ""]
    shown: dict[str, Any] = {"text/plain": "".join(texts).rstrip("\n")}
    only_text = not any(bundle.html or bundle.is_image for bundle in bundles)
    if only_text:
        return shown
    images = [bundle.data["image/png"] for bundle in bundles if "image/png" in bundle.data]
    if images:
        shown["image/png"] = images[-1]
    is_one_image = len(bundles) == 1 and images and not bundles[0].html
    if not (is_one_image and not stdout and not stderr and not error):
        parts = [_pre(stdout), _pre(stderr, "color:#a33"), *map(_bundle, bundles), _pre(error or "", "color:#a33")]
        shown["text/html"] = "".join(parts)
    return shown


def _error(result: Result) -> str | None:
    if result.error is not None:
        return result.error.traceback
    return None if result.ok else result._in_a_sentence()


def _bundle(bundle: Bundle) -> str:
    for mime in ("image/png", "image/jpeg", "image/gif"):
        if isinstance(bundle.data.get(mime), str):
            return f'<img src="data:{mime};base64,{html.escape(bundle.data[mime])}"/>'
    if bundle.html:
        height = min(_MOST_HEIGHT, _LEAST_HEIGHT + _ROW_HEIGHT * bundle.html.count("<tr"))
        frame = f'sandbox="" style="width:100%;height:{height}px;border:0" srcdoc="{html.escape(bundle.html)}"'
        return f"<iframe {frame}></iframe>"
    return _pre(bundle.text or "")


def _pre(text: str, style: str = "") -> str:
    return f'<pre style="{style}">{html.escape(text)}</pre>' if text else ""
