"""The actions of the browser. Each action is a function of this module: its arguments are the fields of the request,
and its return value is the `result` of the response."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from belljar_browser import downloads, snapshot, task
from belljar_browser.browser import Browser
from belljar_browser.errors import BrowserError, Invalid, NavigationFailed, NotUsable, PageTimeout, Refused, TooLarge
from belljar_browser.tab import HEIGHT, UNTIL, WIDTH, Tab

ARTIFACTS = "/session/artifacts"
HOME = "/session"
_WHICH_ELEMENT = "select the element by one of `ref`, `selector` and `text`"

DEFAULT_TIMEOUT = 30.0
# Seconds to wait for an element by default: enough for a busy page, not too long for a wrong selector.
ELEMENT_PATIENCE = 3.0

# Seconds in which a download or the end of the tab explains why there is no page.
ABORTED_PATIENCE = 1.0

# Limits of one response: text, and values of expressions.
DEFAULT_CHARS = 100_000
MAX_CHARS = 1_000_000
# Chromium's limit for one screenshot.
MAX_SIDE = 16384
MAX_PIXELS = 64_000_000


class Request:
    """One action: its fields, its deadline, and its tab."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields
        self.action = str(fields.pop("action", ""))
        self.timeout: float | None = fields.pop("timeout", None)
        self.number: int | None = fields.pop("tab", None)
        self.deadline = time.monotonic() + (self.timeout or DEFAULT_TIMEOUT)

    @property
    def element_deadline(self) -> float:
        return min(self.deadline, time.monotonic() + self.patience)

    @property
    def patience(self) -> float:
        return self.timeout or ELEMENT_PATIENCE


def perform(browser: Browser, request: Request) -> dict[str, Any]:
    """The response to an action."""
    act = ACTIONS.get(request.action)
    if act is None:
        raise Invalid(f"there is no action `{request.action}`; there are: {', '.join(sorted(ACTIONS))}")
    if request.action in WITHOUT_BROWSER and not browser.runs:
        return {"browser": "stopped", "tabs": [], "result": {}}
    state, note = browser.ensure()
    try:
        result = act(browser, request, **request.fields)
    except TypeError as error:
        if "argument" not in str(error):
            raise
        raise Invalid(f"{request.action}: {error}") from None
    state = state if browser.runs else "stopped"
    return {"browser": state, **({"note": note} if note else {}), "result": result, **_where(browser, request.deadline)}


def _where(browser: Browser, deadline: float) -> dict[str, Any]:
    """The state of the browser after an action."""
    if not browser.runs:
        return {"tabs": []}
    soon = max(deadline, time.monotonic() + 1.0)
    dialogs = [dialog for tab in browser.tabs() for dialog in tab.take_dialogs()]
    info: dict[str, Any] = {}
    tabs = browser.tabs()
    current = browser.current_or_none
    for tab in tabs:
        with contextlib.suppress(Refused, PageTimeout):
            tab.refresh(soon)
    if current is not None and not current.is_closed:
        info = {"tab": current.number, "url": current.url[:4000], "title": current.title[:1000]}
    info["tabs"] = [{"tab": tab.number, "url": tab.url[:4000], "title": tab.title[:1000]} for tab in tabs]
    if dialogs:
        info["dialogs"] = dialogs
    if files := browser.downloads.take():
        info["downloads"] = files
    return info


# Navigation.


def goto(
    browser: Browser, request: Request, url: str, until: str = "load", wait_for: str | None = None, wait_ms: int = 0,
    new_tab: bool = False,
) -> dict[str, Any]:
    tab = browser.open_tab(request.deadline) if new_tab else browser.tab(request.number, request.deadline)
    try:
        _go(tab, _address(url), until, wait_for, wait_ms, request.deadline)
    except NavigationFailed as error:
        # A response that is downloaded leaves the current page as it is.
        if "ERR_ABORTED" not in error.message:
            raise
        if not _is_followed(browser, tab):
            raise
        return {"download": browser.downloads.wait(tab.pipe, request.deadline)}
    return _document(tab)


def _is_followed(browser: Browser, tab: Tab) -> bool:
    """Whether there is no page because of a download, or because the tab was closed."""
    soon = time.monotonic() + ABORTED_PATIENCE
    while time.monotonic() < soon and not browser.downloads.begun():
        tab.check()
        tab.pipe.settle(0.02)
    return bool(browser.downloads.begun())


def back(browser: Browser, request: Request, until: str = "load") -> dict[str, Any]:
    tab = browser.tab(request.number, request.deadline)
    tab.travel(-1, _until(until), request.deadline)
    return {}


def forward(browser: Browser, request: Request, until: str = "load") -> dict[str, Any]:
    tab = browser.tab(request.number, request.deadline)
    tab.travel(1, _until(until), request.deadline)
    return {}


def reload(browser: Browser, request: Request, until: str = "load") -> dict[str, Any]:
    tab = browser.tab(request.number, request.deadline)
    tab.reload(_until(until), request.deadline)
    return _document(tab)


def wait(
    browser: Browser, request: Request, until: str | None = None, wait_for: str | None = None, wait_ms: int = 0
) -> dict[str, Any]:
    tab = browser.tab(request.number, request.deadline)
    if until is not None:
        tab.wait_until(_until(until), request.deadline)
    _linger(tab, wait_for, wait_ms, request.deadline)
    return {}


def _go(tab: Tab, url: str, until: str, wait_for: str | None, wait_ms: int, deadline: float) -> None:
    tab.goto(url, _until(until), deadline)
    if tab.refused:
        raise NavigationFailed(
            f"failed to open {url}: {tab.refused}",
            "the session's network policy must allow the host (`network` when it is created; docs/network.md)",
        )
    _linger(tab, wait_for, wait_ms, deadline)


def _linger(tab: Tab, wait_for: str | None, wait_ms: int, deadline: float) -> None:
    if wait_for is not None:
        tab.find("selector", wait_for, deadline)
    if wait_ms:
        if time.monotonic() + wait_ms / 1000 > deadline:
            raise Invalid(f"wait_ms: {wait_ms} ms are more than the time that is left (`timeout`)")
        tab.pipe.settle(wait_ms / 1000)
        tab.check()


def _until(until: str) -> str:
    if until != "none" and until not in UNTIL:
        raise Invalid(f"until: `{until}` is none of {', '.join(UNTIL)}, none")
    return until


def _document(tab: Tab) -> dict[str, Any]:
    info: dict[str, Any] = {}
    if tab.status is not None and tab.status > 0:
        info["status"] = tab.status
    if tab.mime:
        info["mime"] = tab.mime
    return info


def _address(url: str) -> str:
    """The URL for an address as a person writes it."""
    url = url.strip()
    if not url or any(ord(char) < 32 for char in url):
        raise Invalid("url: expected an address")
    if url.startswith("/"):
        return _of_file(url)
    scheme = urlsplit(url).scheme
    if "://" in url or scheme in ("about", "data", "blob", "javascript", "view-source"):
        if scheme == "javascript":
            raise Invalid("url: use `evaluate` for scripts")
        return url
    is_own = url.startswith(("localhost", "127.0.0.1", "[::1]"))
    return f"http://{url}" if is_own else f"https://{url}"


def _of_file(path: str) -> str:
    whole = os.path.normpath(os.path.join(HOME, path))
    if not os.path.exists(whole):
        raise NavigationFailed(f"there is no file {whole}: net::ERR_FILE_NOT_FOUND", "paths are those of the sandbox")
    return f"file://{quote(whole)}"


# Input.


def _element(tab: Tab, request: Request, ref: str | None, selector: str | None, text: str | None) -> str:
    """The element that the request selects."""
    found = _element_or_none(tab, request, ref, selector, text)
    if found is None:
        raise Invalid(_WHICH_ELEMENT)
    return found


def _element_or_none(
    tab: Tab, request: Request, ref: str | None, selector: str | None, text: str | None
) -> str | None:
    """The element that the request selects, if it selects one."""
    given = [(how, what) for how, what in (("ref", ref), ("selector", selector), ("text", text)) if what is not None]
    if len(given) > 1:
        raise Invalid(_WHICH_ELEMENT)
    return tab.find(*given[0], request.element_deadline) if given else None


def click(
    browser: Browser, request: Request, ref: str | None = None, selector: str | None = None, text: str | None = None,
    button: str = "left", count: int = 1,
) -> dict[str, Any]:
    tab = browser.tab(request.number, request.deadline)
    if button not in ("left", "middle", "right"):
        raise Invalid("button: expected left, middle or right")
    element = _element(tab, request, ref, selector, text)
    tab.click(element, button, max(1, min(count, 3)), request.deadline, request.patience)
    opened = browser.follow_popup(tab, request.deadline)
    if opened is not None:
        with contextlib.suppress(PageTimeout):
            opened.wait_until("load", request.deadline)
        return {"opened_tab": opened.number}
    return {}


def type_(
    browser: Browser, request: Request, value: str, ref: str | None = None, selector: str | None = None,
    text: str | None = None, clear: bool = True, submit: bool = False,
) -> dict[str, Any]:
    tab = browser.tab(request.number, request.deadline)
    element = _element_or_none(tab, request, ref, selector, text)
    if element is not None:
        tab.fill(element, value, clear, request.deadline)
    else:
        # Into the element that has the focus.
        tab.call("Input.insertText", {"text": value}, deadline=request.deadline)
    if submit:
        tab.press("Enter", request.deadline)
    return {}


def press(browser: Browser, request: Request, key: str) -> dict[str, Any]:
    tab = browser.tab(request.number, request.deadline)
    tab.check()
    tab.press(key, request.deadline)
    return {}


def scroll(
    browser: Browser, request: Request, ref: str | None = None, selector: str | None = None, text: str | None = None,
    to: str | None = None, x: float = 0, y: float | None = None,
) -> dict[str, Any]:
    tab = browser.tab(request.number, request.deadline)
    element = _element_or_none(tab, request, ref, selector, text)
    if element is not None:
        tab.on_element(element, "function () { this.scrollIntoView({block: 'center'}); }", request.deadline)
    elif to is not None:
        if to not in ("top", "bottom"):
            raise Invalid("to: expected top or bottom")
        place = "0" if to == "top" else "document.scrollingElement.scrollHeight"
        tab.evaluate(f"scrollTo({{top: {place}, behavior: 'instant'}})", request.deadline)
    else:
        # One screen, with a small overlap.
        down = "innerHeight * 0.9" if y is None else float(y)
        tab.evaluate(f"scrollBy({{left: {float(x)}, top: {down}, behavior: 'instant'}})", request.deadline)
    position: dict[str, Any] = tab.evaluate(
        "({y: Math.round(scrollY), height: document.scrollingElement.scrollHeight, viewport: innerHeight})",
        request.deadline,
    )
    return position


def upload(
    browser: Browser, request: Request, files: list[str], ref: str | None = None, selector: str | None = None,
    text: str | None = None,
) -> dict[str, Any]:
    tab = browser.tab(request.number, request.deadline)
    paths = [os.path.normpath(os.path.join(HOME, path)) for path in files]
    for path in paths:
        if not os.path.isfile(path):
            raise Invalid(f"files: there is no file {path}")
    element = _element(tab, request, ref, selector, text)
    try:
        what = {"files": paths, "objectId": element}
        tab.call("DOM.setFileInputFiles", what, deadline=request.deadline)
    except Refused as error:
        raise NotUsable(f"no file can be chosen with this element: {error}") from None
    return {}


# Reading.


def text(
    browser: Browser, request: Request, selector: str | None = None, ref: str | None = None, format: str = "text",
    max_chars: int = DEFAULT_CHARS,
) -> dict[str, Any]:
    tab = browser.tab(request.number, request.deadline)
    if format not in ("text", "html"):
        raise Invalid("format: expected text or html")
    element = _element_or_none(tab, request, ref, selector, None)
    whole = "document.documentElement" if format == "html" else "document.body"
    say = "(e) => e?.outerHTML ?? ''" if format == "html" else "(e) => e?.innerText ?? e?.textContent ?? ''"
    if element is None:
        found = str(tab.evaluate(f"({say})({whole})", request.deadline))
    else:
        found = str(tab.on_element(element, f"function () {{ return ({say})(this); }}", request.deadline))
    kept = found[: _chars(max_chars)]
    return {"text": kept, **({"more_chars": len(found) - len(kept)} if len(kept) < len(found) else {})}


def see(browser: Browser, request: Request, max_chars: int = DEFAULT_CHARS) -> dict[str, Any]:
    tab = browser.tab(request.number, request.deadline)
    loader = tab.loader
    nodes = tab.call("Accessibility.getFullAXTree", deadline=request.deadline, what="the accessibility tree")["nodes"]
    tab.seen_loader = loader
    text, left = snapshot.render(nodes, _chars(max_chars))
    return {"snapshot": text, **({"more_lines": left} if left else {})}


def _chars(asked: int) -> int:
    if not 0 < asked <= MAX_CHARS:
        raise Invalid(f"max_chars: expected 1 to {MAX_CHARS}")
    return asked


def evaluate(browser: Browser, request: Request, expression: str) -> dict[str, Any]:
    tab = browser.tab(request.number, request.deadline)
    value = tab.evaluate(expression, request.deadline)
    if len(json.dumps(value)) > MAX_CHARS:
        raise TooLarge(f"the value is larger than {MAX_CHARS} characters", "return less, or save it to a file")
    tab.after_input(request.deadline)
    return {"value": value}


def status(browser: Browser, request: Request) -> dict[str, Any]:
    return {}


# Screenshots.


def screenshot(
    browser: Browser, request: Request, url: str | None = None, file: str | None = None, html: str | None = None,
    full_page: bool = False, width: int | None = None, height: int | None = None, scale: float = 1.0,
    selector: str | None = None, ref: str | None = None, until: str = "load", wait_for: str | None = None,
    wait_ms: int = 0, name: str | None = None,
) -> dict[str, Any]:
    if sum(source is not None for source in (url, file, html)) > 1:
        raise Invalid("give one of `url`, `file` and `html`, or none of them for the current page")
    path = _screenshot_path(name)
    size = _screenshot_size(width, height, scale)
    deadline = request.deadline
    if url is None and file is None and html is None:
        tab = browser.tab(request.number, deadline)
        _linger(tab, wait_for, wait_ms, deadline)
        return _capture(tab, path, size, full_page, _element_or_none(tab, request, ref, selector, None), deadline)
    # Another page has its own tab, so that the current tab does not navigate.
    tab = browser.side_tab(deadline)
    written = None
    try:
        tab.resize(*size)
        if html is not None:
            # In the session's directory, so that relative links work.
            written = f"{HOME}/.belljar-page-{os.getpid()}-{time.monotonic_ns()}.html"
            with open(written, "w", encoding="utf-8", errors="replace") as page:
                page.write(html)
            address = f"file://{written}"
        else:
            address = _address(url) if url is not None else _of_file(file or "")
        _go(tab, address, until, wait_for, wait_ms, deadline)
        element = _element_or_none(tab, request, None, selector, None)
        info = _capture(tab, path, size, full_page, element, deadline)
        tab.refresh(deadline)
        # Chromium uses the file name as the title of a page without one.
        title = "" if written is not None and tab.title == os.path.basename(written) else tab.title[:1000]
        return {**info, **_document(tab), "of": {"url": "" if written is not None else tab.url[:4000], "title": title}}
    except OSError as error:
        raise BrowserError(f"the page cannot be written to /session: {error.strerror}") from None
    finally:
        if written is not None:
            os.unlink(written)
        browser.freeze_side_tab()


def _capture(
    tab: Tab, path: str, size: tuple[int, int, float], full_page: bool, element: str | None, deadline: float
) -> dict[str, Any]:
    tab.check()
    own_size = size != (WIDTH, HEIGHT, 1.0)
    if own_size:
        tab.resize(*size)
    try:
        clip, cut = _clip(tab, size, full_page, element, deadline)
        params: dict[str, Any] = {"format": "png", "optimizeForSpeed": True}
        if clip is not None:
            params.update(clip={**clip, "scale": 1}, captureBeyondViewport=True)
        answer = tab.call("Page.captureScreenshot", params, deadline=deadline, what="the screenshot")
    except Refused as error:
        raise BrowserError(f"the screenshot failed: {error}") from None
    finally:
        if own_size and tab.is_alive:
            tab.resize(WIDTH, HEIGHT, 1.0)
    png = base64.b64decode(answer["data"])
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        with open(f"{path}.part", "wb") as file:
            file.write(png)
        os.replace(f"{path}.part", path)
    except OSError as error:
        if os.path.exists(f"{path}.part"):
            os.unlink(f"{path}.part")
        raise BrowserError(f"the screenshot cannot be written to {path}: {error.strerror}") from None
    across, down = (int.from_bytes(png[at : at + 4], "big") for at in (16, 20))
    return {"path": path, "width": across, "height": down, **({"cut_off": cut} if cut else {})}


def _clip(
    tab: Tab, size: tuple[int, int, float], full_page: bool, element: str | None, deadline: float
) -> tuple[dict[str, float] | None, int]:
    """The part of the page to capture, and how many pixels of it exceed the limit."""
    if element is not None:
        try:
            quads = tab.call("DOM.getBoxModel", {"objectId": element}, deadline=deadline)["model"]["border"]
        except Refused:
            raise NotUsable("the element is not shown") from None
        offset = tab.call("Page.getLayoutMetrics", deadline=deadline)["cssVisualViewport"]
        across, down = quads[0::2], quads[1::2]
        clip = {"x": min(across) + offset["pageX"], "y": min(down) + offset["pageY"]}
        clip |= {"width": max(across) - min(across), "height": max(down) - min(down)}
    elif full_page:
        content = tab.call("Page.getLayoutMetrics", deadline=deadline)["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": max(content["width"], 1), "height": max(content["height"], 1)}
    else:
        return None, 0
    if clip["width"] < 1 or clip["height"] < 1:
        raise NotUsable("the element has no size")
    scale = size[2]
    most = min(MAX_SIDE / scale, MAX_PIXELS / scale / scale / min(clip["width"], MAX_SIDE / scale))
    cut = max(0, round(clip["height"] - most))
    return {**clip, "width": min(clip["width"], MAX_SIDE / scale), "height": min(clip["height"], most)}, cut


def _screenshot_path(name: str | None) -> str:
    if name is None:
        now = time.time()
        name = time.strftime("screenshot-%Y%m%d-%H%M%S", time.gmtime(now)) + f"-{int(now * 1000) % 1000:03}.png"
    if name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")) or "\0" in name:
        raise Invalid("name: expected the name of a file below /session/artifacts")
    return f"{ARTIFACTS}/{name if name.lower().endswith('.png') else name + '.png'}"


def _screenshot_size(width: int | None, height: int | None, scale: float) -> tuple[int, int, float]:
    across, down = width or WIDTH, height or HEIGHT
    if not (1 <= across <= MAX_SIDE and 1 <= down <= MAX_SIDE):
        raise Invalid(f"width, height: expected 1 to {MAX_SIDE}")
    if not 0.1 <= scale <= 4:
        raise Invalid("scale: expected 0.1 to 4")
    if across * down * scale * scale > MAX_PIXELS:
        raise Invalid(f"width, height, scale: more than {MAX_PIXELS} pixels")
    return across, down, float(scale)


# Files.


def download(
    browser: Browser, request: Request, url: str | None = None, ref: str | None = None, selector: str | None = None,
    text: str | None = None, name: str | None = None,
) -> dict[str, Any]:
    tab = browser.tab(request.number, request.deadline)
    if url is not None:
        if (ref, selector, text) != (None, None, None):
            raise Invalid("give either `url` or an element to click")
        return downloads.fetch(tab, _joined(tab.url, url), name, request.deadline)
    if name is not None:
        raise Invalid("name: only a download by `url` can have a name of your choice")
    element = _element(tab, request, ref, selector, text)
    tab.click(element, "left", 1, request.deadline, request.patience)
    # A download that does not begin soon will not begin.
    soon = min(request.deadline, time.monotonic() + 5.0)
    while not browser.downloads.begun() and time.monotonic() < soon:
        tab.pipe.settle(0.02)
    found = browser.downloads.wait(tab.pipe, request.deadline if browser.downloads.begun() else time.monotonic() + 0.01)
    tab.opens_window = False
    return found


def _joined(base: str, url: str) -> str:
    """The absolute URL for an address that may be relative to the page."""
    if "://" not in url and base.startswith(("http://", "https://", "file://")):
        return urljoin(base, url)
    return _address(url)


# Closing.


def close(browser: Browser, request: Request) -> dict[str, Any]:
    if request.number is None:
        browser.forget()
    else:
        browser.close_tab(browser.tab(request.number, request.deadline), request.deadline)
    return {}


ACTIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "goto": goto,
    "back": back,
    "forward": forward,
    "reload": reload,
    "wait": wait,
    "click": click,
    "type": type_,
    "press": press,
    "scroll": scroll,
    "upload": upload,
    "text": text,
    "snapshot": see,
    "evaluate": evaluate,
    "screenshot": screenshot,
    "download": download,
    "status": status,
    "close": close,
    "task": task.perform,
}

# These actions do not start a browser.
WITHOUT_BROWSER = {"status", "close"}
