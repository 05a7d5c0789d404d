"""Converts Python values to MIME bundles; `display()`.

Once an IPython shell exists, its formatters are used, because libraries register theirs with it (sympy, altair). Until
then the code here follows the same `_repr_*_` protocol without importing anything. A representation that fails (raises,
recurses, returns a wrong type, is too large) becomes text in the bundle.
"""

from __future__ import annotations

import binascii
import json
import sys
from itertools import islice

from . import figures
from .wire import encode_json

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    # Data and metadata, by mime type.
    Bundle = tuple[dict[str, Any], dict[str, Any]]

# Limits of one message. A note replaces an entry that is dropped.
MAX_ENTRY_BYTES = 8 << 20
MAX_BUNDLE_BYTES = 24 << 20
MAX_TEXT_CHARS = 1 << 20

# Longer reprs of containers are split into several lines, up to a size where that is still fast.
LINE_CHARS = 80
MAX_LAYOUT_CHARS = 100_000
# Of longer containers only the beginning is shown, as IPython does.
MAX_ITEMS = 1000

TEXT = "text/plain"

_METHODS = (
    ("_repr_html_", "text/html"),
    ("_repr_markdown_", "text/markdown"),
    ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"),
    ("_repr_pdf_", "application/pdf"),
    ("_repr_jpeg_", "image/jpeg"),
    ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
    ("_repr_javascript_", "application/javascript"),
)

# An object that has this attribute has every attribute (a Mock, a proxy).
_CANARY = "_ipython_canary_method_should_not_exist_"

# These have only a repr; looking for methods would take longer than the whole cell.
_PLAIN_TYPES = frozenset((int, float, complex, bool, str, bytes))
_CONTAINERS = (list, tuple, dict, set, frozenset)

# Set by `magics` when a shell is created: its `display_formatter.format`.
ipython_format: Callable[[Any], Bundle] | None = None
# Set by the kernel: takes a message kind and a bundle.
publish: Callable[[str, Bundle], None]


def display(*objects: Any, raw: bool = False, metadata: dict[str, Any] | None = None, **options: Any) -> Any:
    """Shows each object in its richest format. With `raw`, the objects are already MIME bundles."""
    if "IPython" in sys.modules or "display_id" in options:
        # Only IPython's own function knows display ids, captures (`%%capture`) and filters.
        from IPython.display import display as ipython_display

        return ipython_display(*objects, raw=raw, metadata=metadata, **options)
    for value in objects:
        bundle = (value, metadata or {}) if raw else bundle_of(value)
        if bundle is not None:
            publish("display", bundle)  # noqa: F821 - the kernel assigns it


def bundle_of(value: Any) -> Bundle | None:
    """The representations of a value; None if it has displayed itself. Runs user code."""
    if type(value) in _PLAIN_TYPES:
        return {TEXT: _text(value)}, {}
    data: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    try:
        if ipython_format is not None:
            data, metadata = ipython_format(value)
            if not data and callable(getattr(value, "_ipython_display_", None)):
                return None
        else:
            own = _own_format(value)
            if own is None:
                return None
            data, metadata = own
    except Exception as error:
        _complain(f"the representation of a {_type_name(value)} object failed", error)
    if TEXT not in data or type(value) in _CONTAINERS:
        # Also instead of IPython's text, which puts every item of a list on its own line.
        data[TEXT] = _text(value)
    return data, metadata


def encode_bundle(bundle: Bundle) -> bytes:
    """The body of a display message: binary as base64, all entries within their limits."""
    data, metadata = bundle
    clean: dict[str, Any] = {}
    notes = []
    total = 0
    for mime, content in data.items():
        if isinstance(content, (bytes, bytearray, memoryview)):
            content = binascii.b2a_base64(content, newline=False).decode()
        if mime == TEXT and isinstance(content, str) and len(content) > MAX_TEXT_CHARS:
            content = f"{content[:MAX_TEXT_CHARS]}\n... cut here: {len(content)} characters in all"
        elif not isinstance(content, str):
            content = _jsonable(content)
        size = _encoded_size(content)
        if size > MAX_ENTRY_BYTES:
            notes.append(f"[{mime} dropped: {size} bytes, the limit is {MAX_ENTRY_BYTES}]")
        elif total + size > MAX_BUNDLE_BYTES:
            notes.append(f"[{mime} dropped: the limit for all forms together is {MAX_BUNDLE_BYTES} bytes]")
        else:
            total += size
            clean[str(mime)] = content
    if notes:
        clean[TEXT] = "\n".join([clean[TEXT], *notes] if TEXT in clean else notes)
    return encode_json({"data": clean, "metadata": _jsonable(metadata) if metadata else {}})


def _own_format(value: Any) -> Bundle | None:
    """IPython's protocol: `_ipython_display_`, then `_repr_mimebundle_`, then one method per type."""
    data: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    if figures.is_figure(value):
        image = figures.png_once(value)
        return ({} if image is None else {"image/png": image}), metadata
    if isinstance(value, type) or hasattr(value, _CANARY):
        return data, metadata
    shows_itself = getattr(value, "_ipython_display_", None)
    if callable(shows_itself):
        shows_itself()
        return None
    for name, mime in (("_repr_mimebundle_", None), *_METHODS):
        method = getattr(value, name, None)
        if mime in data or not callable(method):
            continue
        try:
            content = method(include=None, exclude=None) if mime is None else method()
        except NotImplementedError:
            continue
        except Exception as error:
            _complain(f"{name}() of a {_type_name(value)} object failed", error)
            continue
        extra = None
        if isinstance(content, tuple) and len(content) == 2:
            content, extra = content
        if content is None:
            continue
        if mime is None:
            data.update(content)
            metadata.update(extra or {})
        else:
            data[mime] = content
            if extra is not None:
                metadata[mime] = extra
    return data, metadata


def _text(value: Any) -> str:
    """repr(), over several lines when it is long; an error in it becomes the text."""
    try:
        if type(value) not in _CONTAINERS:
            return repr(value)
        shown = value if len(value) <= MAX_ITEMS else _first_items(value)
        text = repr(shown)
        if LINE_CHARS < len(text) <= MAX_LAYOUT_CHARS:
            import pprint

            text = pprint.pformat(shown, width=LINE_CHARS, compact=True, sort_dicts=False)
        return text if shown is value else f"{text}\n... {MAX_ITEMS} of {len(value)} items shown"
    except Exception as error:
        return f"<{_type_name(value)} object, whose repr failed with {_error_text(error)}>"


def _first_items(value: Any) -> Any:
    """A container of the same type, small enough to print."""
    items = value.items() if type(value) is dict else value
    return type(value)(islice(items, MAX_ITEMS))


def _complain(what: str, error: Exception) -> None:
    try:
        print(f"{what}: {_error_text(error)}", file=sys.stderr)
    except Exception:
        # User code has replaced sys.stderr; the note is not important enough to fail the cell.
        pass


def _error_text(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def _type_name(value: Any) -> str:
    return type(value).__name__


def _encoded_size(content: Any) -> int:
    if isinstance(content, str):
        # UTF-8 needs at most four bytes for a character, so most strings need not be encoded to be measured.
        if len(content) * 4 <= MAX_ENTRY_BYTES or content.isascii():
            return len(content)
        return len(content.encode("utf-8", "replace"))
    return len(encode_json(content))


def _jsonable(value: Any) -> Any:
    """A copy that strict JSON can express: NaN becomes null, arrays become lists, other objects their repr."""
    try:
        text = json.dumps(value, default=_stranger)
    except (TypeError, ValueError, RecursionError):
        return _text(value)
    return json.loads(text, parse_constant=lambda _: None)


def _stranger(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return binascii.b2a_base64(value, newline=False).decode()
    tolist = getattr(value, "tolist", None)
    return tolist() if callable(tolist) else _text(value)
