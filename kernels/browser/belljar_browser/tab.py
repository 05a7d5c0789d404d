"""One tab: navigation, waiting, elements, and input."""

from __future__ import annotations

import contextlib
import http.client
import os
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from belljar_browser import keys
from belljar_browser.errors import (
    Invalid,
    NavigationFailed,
    NoElement,
    NoTab,
    NotUsable,
    PageCrashed,
    PageTimeout,
    Refused,
    ScriptFailed,
    StaleRef,
)
from belljar_browser.pipe import Pipe

WIDTH, HEIGHT = 1280, 800

# The loading stages of a page, with Chromium's names.
UNTIL = {"commit": "commit", "domcontentloaded": "DOMContentLoaded", "load": "load", "networkidle": "networkIdle"}

# Stages that only a committed document reaches.
BEGINNINGS = ("init", "commit", "DOMContentLoaded", "load")

# Seconds in which a page starts to navigate after a click or a key, if it does.
SETTLE = 0.05
# Seconds between two checks for an element.
PACE = 0.05
# The duration of two frames.
FRAMES = 0.034
# Seconds for the position of an element.
LOOK = 2.0
# Seconds for the proxy to say why it refuses a host, and how many characters of that are kept.
_REFUSAL_PATIENCE = 5.0
_MAX_REFUSAL = 4000
# Limits for the dialogs that are reported.
MAX_DIALOGS = 20
MAX_DIALOG_TEXT = 2000

# Finds elements. It runs in an isolated world, where the page cannot replace functions.
FIND = r"""
(how, what) => {
  const shown = (e) => {
    if (!e.isConnected) return false;
    const style = getComputedStyle(e);
    if (style.visibility === 'hidden' || style.display === 'none') return false;
    const box = e.getBoundingClientRect();
    return box.width > 0 && box.height > 0;
  };
  const roots = (root) => {
    const found = [root];
    for (const e of root.querySelectorAll('*')) if (e.shadowRoot) found.push(...roots(e.shadowRoot));
    return found;
  };
  if (how === 'selector') {
    const all = roots(document).flatMap((root) => [...root.querySelectorAll(what)]);
    return all.find(shown) ?? all[0] ?? null;
  }
  const plain = (text) => (text ?? '').replace(/\s+/g, ' ').trim().toLowerCase();
  const wanted = plain(what);
  const USABLE = 'a,button,input,select,textarea,label,summary,option,[role],[onclick],[tabindex]';
  const best = { rank: 9, size: Infinity, element: null };
  for (const root of roots(document)) {
    for (const e of root.querySelectorAll('*')) {
      if (/^(SCRIPT|STYLE|NOSCRIPT|HEAD|TITLE|META|LINK|HTML|BODY)$/.test(e.tagName)) continue;
      const isInput = e.tagName === 'INPUT' && /^(submit|button|reset|image)$/.test(e.type);
      const own = isInput ? e.value : (e.innerText ?? e.textContent);
      const names = [own, e.getAttribute('aria-label'), e.getAttribute('title'), e.getAttribute('placeholder'),
                     e.getAttribute('alt')].map(plain);
      const exact = names.includes(wanted);
      if (!exact && !names.some((name) => name.includes(wanted))) continue;
      if (!shown(e)) continue;
      const rank = (exact ? 0 : 2) + (e.matches(USABLE) ? 0 : 1);
      const size = (own ?? '').length;
      if (rank < best.rank || (rank === best.rank && size <= best.size && !(best.element?.matches(USABLE) &&
          best.element.contains(e)))) {
        Object.assign(best, { rank, size, element: e });
      }
    }
  }
  return best.element;
}
"""

# Which element covers a point, if any.
COVER = r"""
function (x, y) {
  if (this.disabled) return 'it is disabled';
  let hit = document.elementFromPoint(x, y);
  while (hit?.shadowRoot) {
    const inner = hit.shadowRoot.elementFromPoint(x, y);
    if (!inner || inner === hit) break;
    hit = inner;
  }
  for (let e = hit; e; e = e.parentNode ?? e.host) if (e === this) return '';
  for (let e = this; e; e = e.parentNode ?? e.host) if (e === hit) return '';
  if (this.tagName === 'OPTION' || hit?.closest?.('label')?.control === this) return '';
  if (!hit) return 'nothing is there';
  const name = hit.tagName.toLowerCase() + (hit.id ? '#' + hit.id : '') +
    (typeof hit.className === 'string' && hit.className ? '.' + hit.className.trim().split(/\s+/).join('.') : '');
  return '<' + name.slice(0, 100) + '> covers it';
}
"""

# Whether a click opens a window, according to the link's target.
OPENS = r"""
function () {
  const target = this.closest?.('a[target], area[target]')?.target ?? '';
  return target !== '' && !/^_(self|top|parent)$/i.test(target);
}
"""

# The control of a label.
CONTROL = "function () { return this.tagName === 'LABEL' && this.control ? this.control : this; }"

# Prepares an element for typing: 'type' if keys are needed, 'done' if the value was set, else the reason why not.
PREPARE = r"""
function (value, clear) {
  const tell = () => {
    this.dispatchEvent(new Event('input', { bubbles: true, composed: true }));
    this.dispatchEvent(new Event('change', { bubbles: true }));
  };
  if (this.disabled) return 'it is disabled';
  if (this.readOnly) return 'it is read-only';
  if (this.tagName === 'SELECT') {
    const plain = (text) => text.replace(/\s+/g, ' ').trim();
    const option = [...this.options].find((o) => o.value === value) ??
      [...this.options].find((o) => plain(o.label) === plain(value) || plain(o.text) === plain(value));
    if (!option) return 'it has no option `' + value + '`; there are: ' +
      [...this.options].map((o) => plain(o.text)).join(', ').slice(0, 500);
    this.focus();
    option.selected = true;
    tell();
    return 'done';
  }
  if (this.tagName === 'INPUT' && /^(checkbox|radio|file|submit|button|image|reset|hidden)$/.test(this.type)) {
    return 'nothing can be typed into an input of type ' + this.type +
      (this.type === 'file' ? '; use `upload`' : '; use `click`');
  }
  if (this.tagName === 'INPUT' && /^(date|time|datetime-local|month|week|color|range)$/.test(this.type)) {
    const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set;
    set.call(this, value);
    if (value && !this.value) return 'it does not take `' + value + '` (an input of type ' + this.type + ')';
    tell();
    return 'done';
  }
  const isText = this.tagName === 'INPUT' || this.tagName === 'TEXTAREA';
  if (!isText && !this.isContentEditable) return 'nothing can be typed into <' + this.tagName.toLowerCase() + '>';
  this.focus();
  if (clear) {
    if (isText) this.select();
    else getSelection().selectAllChildren(this);
  } else if (isText) {
    try { this.setSelectionRange(this.value.length, this.value.length); } catch { /* email and number have none */ }
  }
  return 'type';
}
"""


class Tab:
    def __init__(self, pipe: Pipe, number: int, session: str, info: dict[str, Any]) -> None:
        self.pipe = pipe
        self.number = number
        self.session = session
        self.target: str = info["targetId"]
        self.opener: str | None = info.get("openerId")
        self.url: str = info["url"]
        self.title: str = info.get("title", "")
        self.was_followed = False
        #: Whether the events that we need are enabled.
        self.is_ready = False
        self.is_closed = False
        self.is_crashed = False
        #: The current document, and its loading stage.
        self.loader = ""
        self._stages: set[str] = set()
        self._is_going = False
        #: The HTTP status and type of the current document.
        self.status: int | None = None
        self.mime = ""
        #: Why the proxy refused the document, if it did.
        self.refused = ""
        self.dialogs: list[dict[str, str]] = []
        self._world: tuple[str, int] | None = None
        #: Whether the page has announced a new window.
        self.opens_window = False
        #: The document of the last snapshot.
        self.seen_loader = ""

    # Messages.

    @property
    def is_alive(self) -> bool:
        return not (self.is_closed or self.is_crashed)

    def check(self) -> None:
        if self.is_closed:
            raise NoTab(f"tab {self.number} was closed")
        if self.is_crashed:
            raise PageCrashed(
                f"the page in tab {self.number} crashed ({self.url})",
                "open another page, or the same again; if it needs much memory, use a session with more",
            )

    def call(self, method: str, params: dict[str, Any] | None = None, *, deadline: float, what: str = "") -> Any:
        self.check()
        return self.pipe.call(
            method, params, session=self.session, deadline=deadline, check=self.check, what=what or self.url
        )

    def post(self, method: str, params: dict[str, Any] | None = None) -> None:
        self.pipe.post(method, params, self.session)

    def prepare(self) -> None:
        """Enables the events that we need, without waiting."""
        self.post("Page.enable")
        self.post("Page.setLifecycleEventsEnabled", {"enabled": True})
        self.post("Network.enable", {"maxTotalBufferSize": 0, "maxResourceBufferSize": 0})
        self.post("Emulation.setFocusEmulationEnabled", {"enabled": True})
        self.resize(WIDTH, HEIGHT, 1.0)
        # A tab that navigates before all events are enabled loses some of them, or crashes.
        self.pipe.post("Runtime.getIsolateId", {}, self.session, self._get_ready)

    def _get_ready(self) -> None:
        self.is_ready = True

    def resize(self, width: int, height: int, scale: float) -> None:
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
        self.post("Emulation.setDeviceMetricsOverride", size)

    def on_event(self, method: str, params: dict[str, Any]) -> None:
        if method == "Page.lifecycleEvent":
            if params["frameId"] == self.target:
                if params["name"] in BEGINNINGS and params["loaderId"] != self.loader:
                    self.loader, self._stages = params["loaderId"], set()
                if params["loaderId"] == self.loader:
                    self._stages.add(params["name"])
        elif method in ("Page.frameStartedLoading", "Page.frameStartedNavigating", "Page.frameRequestedNavigation"):
            self._is_going |= params["frameId"] == self.target
        elif method in ("Page.frameStoppedLoading", "Page.navigatedWithinDocument"):
            if params["frameId"] == self.target:
                self._is_going = False
        elif method == "Network.responseReceived":
            if params.get("type") == "Document" and params.get("frameId") == self.target:
                response = params["response"]
                self.status, self.mime = response["status"], response["mimeType"]
                headers = {name.lower(): value for name, value in response.get("headers", {}).items()}
                self.refused = str(headers.get("x-belljar-network", ""))[:300]
        elif method == "Page.windowOpen":
            self.opens_window = True
        elif method == "Page.javascriptDialogOpening":
            self._answer_dialog(params)
        elif method == "Inspector.targetCrashed":
            self.is_crashed = True

    def _answer_dialog(self, params: dict[str, Any]) -> None:
        # A page waits until its dialog is answered, and there is no user.
        self.post("Page.handleJavaScriptDialog", {"accept": True, "promptText": params.get("defaultPrompt", "")})
        if len(self.dialogs) < MAX_DIALOGS:
            self.dialogs.append({"type": params["type"], "message": params["message"][:MAX_DIALOG_TEXT]})

    def take_dialogs(self) -> list[dict[str, str]]:
        dialogs, self.dialogs = self.dialogs, []
        return dialogs

    def refresh(self, deadline: float) -> None:
        """Reads the current address and title."""
        if self.is_closed:
            return
        info = self.pipe.call("Target.getTargetInfo", {"targetId": self.target}, deadline=deadline)["targetInfo"]
        self.url, self.title = info["url"], info["title"]

    def close(self, deadline: float) -> None:
        if not self.is_closed:
            self.pipe.call("Target.closeTarget", {"targetId": self.target}, deadline=deadline, what="the tab to close")
            self.pipe.until(lambda: self.is_closed, deadline, "the tab to close")

    # Navigation.

    def goto(self, url: str, until: str, deadline: float) -> None:
        if self.is_crashed:
            # A crashed page works again with another document.
            self.is_crashed = False
        before = self.loader
        self.status, self.mime, self.refused = None, "", ""
        try:
            answer = self.call("Page.navigate", {"url": url}, deadline=deadline, what=f"{url} to answer")
        except PageTimeout:
            self.post("Page.stopLoading")
            raise PageTimeout(f"{url} did not answer in time") from None
        except Refused as error:
            raise Invalid(f"url: {error} ({url})") from None
        if failure := answer.get("errorText"):
            why, hint = refusal(url) if "TUNNEL" in failure else ("", "")
            raise NavigationFailed(f"failed to open {url}: {failure}{why}", hint or _advice(failure))
        if answer.get("loaderId"):
            self._until_stage(until, before, deadline)

    def travel(self, steps: int, until: str, deadline: float) -> None:
        """Back or forward."""
        history = self.call("Page.getNavigationHistory", deadline=deadline)
        at = history["currentIndex"] + steps
        if not 0 <= at < len(history["entries"]):
            raise NavigationFailed(f"there is no page to go {'back' if steps < 0 else 'forward'} to")
        entry = history["entries"][at]
        self._go(lambda: self.call("Page.navigateToHistoryEntry", {"entryId": entry["id"]}, deadline=deadline),
                 until, deadline)

    def reload(self, until: str, deadline: float) -> None:
        self.is_crashed = False
        before = self.loader
        self.call("Page.reload", deadline=deadline)
        self._until_stage(until, before, deadline)

    def _go(self, act: Callable[[], Any], until: str, deadline: float) -> None:
        before = self.loader
        act()
        self.after_input(deadline, until)
        if self.loader != before:
            self._until_stage(until, before, deadline)

    def after_input(self, deadline: float, until: str = "load") -> None:
        """Waits for the navigation that a click or a key has started, if any."""
        before = self.loader
        self.pipe.settle(SETTLE)
        if not (self._is_going or self.loader != before) or self.is_closed:
            return
        # A page that never stops loading can still be used.
        with contextlib.suppress(PageTimeout):
            self.pipe.until(lambda: not self._is_going or self.is_closed, deadline, "", self._check_crash)
        if not self.is_closed and until == "networkidle":
            self.wait_until(until, deadline)

    def _check_crash(self) -> None:
        if self.is_crashed:
            self.check()

    def wait_until(self, until: str, deadline: float) -> None:
        self._until_stage(until, None, deadline)

    def _until_stage(self, until: str, before: str | None, deadline: float) -> None:
        if until == "none":
            return
        stage = UNTIL[until]

        def has_come() -> bool:
            return self.loader != before and stage in self._stages

        try:
            self.pipe.until(has_come, deadline, f"`{until}` of {self.url}", self.check)
        except PageTimeout:
            self.post("Page.stopLoading")
            reached = [name for name, stage in UNTIL.items() if stage in self._stages] or ["nothing"]
            raise PageTimeout(
                f"timed out waiting for `{until}` of {self.url}; it has reached {reached[-1]}",
                "give it more time (`timeout`), or wait for less (`until`)",
            ) from None

    # Reading.

    def evaluate(self, expression: str, deadline: float) -> Any:
        """The value of an expression in the page. Promises are awaited."""
        params = {
            "expression": expression,
            "awaitPromise": True,
            "returnByValue": True,
            "userGesture": True,
            "replMode": True,
            # A little later than our own deadline, so that our error is the one that is reported.
            "timeout": max(1, round((deadline - time.monotonic() + 0.5) * 1000)),
        }
        try:
            answer = self.call("Runtime.evaluate", params, deadline=deadline, what="the expression")
        except PageTimeout:
            self.post("Runtime.terminateExecution")
            raise PageTimeout("timed out waiting for the expression", "give it more time (`timeout`)") from None
        except Refused as error:
            raise ScriptFailed(f"its value cannot be serialized: {error}") from None
        if details := answer.get("exceptionDetails"):
            raise ScriptFailed(_exception(details))
        return answer["result"].get("value")

    def world(self, deadline: float) -> int:
        """The isolated world for our own functions: they see the page's elements, but not its scripts."""
        if self._world is not None and self._world[0] == self.loader:
            return self._world[1]
        loader = self.loader
        made = self.call("Page.createIsolatedWorld", {"frameId": self.target}, deadline=deadline)
        self._world = (loader, made["executionContextId"])
        return self._world[1]

    def find(self, how: str, what: str, deadline: float) -> str:
        """An element, by `ref`, `selector` or `text`. Waits for it until the deadline."""
        if how == "ref":
            return self._find_ref(what, deadline)
        while True:
            try:
                found = self._look(how, what, _for_one_look(deadline))
                if found is not None:
                    return found
            except Refused:
                # The page has navigated meanwhile.
                self._world = None
            if time.monotonic() + PACE >= deadline:
                message = f"no element matches {what!r}" if how == "selector" else f"no element has the text {what!r}"
                raise NoElement(f"{message} at {self.url}", "`snapshot` shows the elements of the page")
            self.pipe.settle(PACE)

    def _look(self, how: str, what: str, deadline: float) -> str | None:
        params = {
            "functionDeclaration": FIND,
            "executionContextId": self.world(deadline),
            "arguments": [{"value": how}, {"value": what}],
        }
        answer = self.call("Runtime.callFunctionOn", params, deadline=deadline)
        if details := answer.get("exceptionDetails"):
            raise Invalid(f"{how}: {_exception(details)}")
        found: str | None = answer["result"].get("objectId")
        return found

    def _find_ref(self, ref: str, deadline: float) -> str:
        if not (ref.startswith("e") and ref[1:].isdigit()):
            raise Invalid(f"ref: expected a ref from a snapshot such as `e12`, not {ref!r}")
        stale = StaleRef(f"{ref} belongs to a page that is no longer open", "take a new `snapshot`")
        if self.seen_loader != self.loader:
            raise stale
        node = {"backendNodeId": int(ref[1:]), "executionContextId": self.world(deadline)}
        try:
            return str(self.call("DOM.resolveNode", node, deadline=deadline)["object"]["objectId"])
        except Refused:
            raise stale from None

    def on_element(self, element: str, function: str, deadline: float, *arguments: Any) -> Any:
        params = {
            "objectId": element,
            "functionDeclaration": function,
            "arguments": [{"value": value} for value in arguments],
            "returnByValue": True,
            "userGesture": True,
        }
        answer = self.call("Runtime.callFunctionOn", params, deadline=deadline)
        if details := answer.get("exceptionDetails"):
            raise ScriptFailed(_exception(details))
        return answer["result"].get("value")

    # Input.

    def point_of(self, element: str, deadline: float) -> tuple[float, float]:
        """The point to click on an element, when it is in view and not covered."""
        why = ""
        while True:
            soon = _for_one_look(deadline)
            try:
                self.call("DOM.scrollIntoViewIfNeeded", {"objectId": element}, deadline=soon)
                quads = self._quads(element, soon)
                # Wait until it does not move.
                self.pipe.settle(FRAMES)
                points = [_center(quad) for quad in quads if _area(quad) >= 1]
                why = "it has no size"
                if quads != self._quads(element, soon):
                    why = "it moves"
                elif points:
                    x, y = points[0]
                    why = self.on_element(element, COVER, soon, x, y)
                    if not why:
                        return x, y
            except Refused as error:
                why = "it is not shown" if "layout" in str(error) or "quads" in str(error) else str(error)
            if time.monotonic() + PACE >= deadline:
                hint = "close the element that covers it, or use `evaluate`"
                raise NotUsable(f"the element cannot be clicked: {why}", hint)
            self.pipe.settle(PACE)

    def _quads(self, element: str, deadline: float) -> list[list[float]]:
        quads: list[list[float]] = self.call("DOM.getContentQuads", {"objectId": element}, deadline=deadline)["quads"]
        return quads

    def click(self, element: str, button: str, count: int, deadline: float, patience: float) -> None:
        x, y = self.point_of(element, min(deadline, time.monotonic() + patience))
        where = {"x": x, "y": y}
        self.opens_window = bool(self.on_element(element, OPENS, deadline)) and button == "left"
        self.call("Input.dispatchMouseEvent", {"type": "mouseMoved", **where}, deadline=deadline)
        for number in range(1, count + 1):
            event = {**where, "button": button, "clickCount": number}
            for kind in ("mousePressed", "mouseReleased"):
                self._input("Input.dispatchMouseEvent", {"type": kind, **event}, deadline)
        self.after_input(deadline)

    def _input(self, method: str, event: dict[str, Any], deadline: float) -> None:
        """Sends an input event. The reply arrives when the page has handled it, unless that has closed the tab."""
        try:
            self.call(method, event, deadline=deadline, what="the page to handle the input")
        except NoTab:
            pass
        except Refused:
            if not self.is_closed:
                raise

    def fill(self, element: str, value: str, clear: bool, deadline: float) -> None:
        with contextlib.suppress(Refused):
            self.call("DOM.scrollIntoViewIfNeeded", {"objectId": element}, deadline=deadline)
        meant = {"objectId": element, "functionDeclaration": CONTROL}
        element = self.call("Runtime.callFunctionOn", meant, deadline=deadline)["result"].get("objectId", element)
        how = self.on_element(element, PREPARE, deadline, value, clear)
        if how == "type":
            if value:
                self.call("Input.insertText", {"text": value}, deadline=deadline)
            elif clear:
                self.press("Backspace", deadline)
        elif how != "done":
            raise NotUsable(f"the element cannot be typed into: {how}")
        self.after_input(deadline)

    def press(self, chord: str, deadline: float) -> None:
        for event in keys.events(chord):
            self._input("Input.dispatchKeyEvent", event, deadline)
        self.after_input(deadline)


def _for_one_look(deadline: float) -> float:
    """The deadline, but late enough for one check."""
    return max(deadline, time.monotonic() + LOOK)


def _exception(details: dict[str, Any]) -> str:
    thrown = details.get("exception", {})
    text = thrown.get("description") or str(thrown.get("value", "")) or details.get("text", "it failed")
    # The stack often shows only our own wrapper.
    return text.split("\n    at ")[0][:2000]


def _center(quad: list[float]) -> tuple[float, float]:
    return sum(quad[0::2]) / 4, sum(quad[1::2]) / 4


def _area(quad: list[float]) -> float:
    points = list(zip(quad[0::2], quad[1::2]))
    following = points[1:] + points[:1]
    return abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in zip(points, following))) / 2


def refusal(url: str) -> tuple[str, str]:
    """Why the proxy refuses this host, and what to do. Chromium does not report it, so this sends the request again."""
    parts = urlsplit(url)
    address = os.environ.get("HTTPS_PROXY", "")
    try:
        proxy = urlsplit(address)
        asked = http.client.HTTPConnection(proxy.hostname or "", proxy.port or 80, timeout=_REFUSAL_PATIENCE)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        asked.putrequest("CONNECT", f"{host}:{parts.port or 443}", skip_host=True, skip_accept_encoding=True)
        asked.endheaders()
        answer = asked.getresponse()
        if answer.status == 200:
            return "", ""
        text = answer.read(_MAX_REFUSAL).decode("utf-8", "replace").strip().removeprefix("belljar: ")
    except (OSError, ValueError, http.client.HTTPException):
        return "", ""
    why, _, hint = text.partition("\n")
    return f" ({why})", hint


def _advice(error: str) -> str:
    if "PROXY" in error or "TUNNEL" in error or "NAME_NOT_RESOLVED" in error or "INTERNET_DISCONNECTED" in error:
        return "the session's network policy must allow the host (`network` when it is created; docs/network.md)"
    if "CONNECTION_REFUSED" in error:
        return "nothing listens there; `localhost` is the sandbox itself"
    if "FILE_NOT_FOUND" in error:
        return "paths are those inside the sandbox"
    return ""
