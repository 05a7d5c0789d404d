"""The life cycle of Chromium in a session.

    (nothing) ── first use ──▶ runs ── idle ──▶ stopped: cookies, addresses of tabs and local storage are stored
                                │  ▲                │
                                │  └── next use ────┘  "restored": the pages are loaded again
                                └── crash, out of memory ──▶ lost; the next use starts a new one and reports it

Little is stored while Chromium is stopped, because files in a sandbox may be in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from typing import Any

from belljar_browser import task
from belljar_browser.downloads import Downloads
from belljar_browser.errors import BrowserCrashed, BrowserError, Interrupted, NoBrowser, NoTab, PageTimeout, Refused
from belljar_browser.pipe import Interrupts, Pipe
from belljar_browser.process import Process
from belljar_browser.tab import Tab

PLACE = "/tmp/.belljar-browser"
PROFILE = f"{PLACE}/profile"
STATE = f"{PLACE}/state.json"
# The parts of a profile that are kept while the browser is stopped.
KEPT = ["Default/Local Storage", "Default/IndexedDB"]
MAX_KEPT_BYTES = 2 << 20

START_PATIENCE = 30.0
MAX_TABS = 16
# Seconds to wait for a window that a page has announced.
POPUP_PATIENCE = 2.0


class Browser:
    def __init__(self, interrupts: Interrupts) -> None:
        self._interrupts = interrupts
        self._process: Process | None = None
        self._tabs: dict[str, Tab] = {}
        self._by_session: dict[str, Tab] = {}
        self._current: Tab | None = None
        self._side: Tab | None = None
        self._front: Tab | None = None
        self._number = 0
        self.downloads = Downloads()
        #: Why the last browser ended, until it is reported.
        self._lost = ""

    # Life cycle.

    @property
    def runs(self) -> bool:
        return self._process is not None

    @property
    def pipe(self) -> Pipe:
        if self._process is None:
            raise BrowserCrashed("the browser does not run")
        return self._process.pipe

    def ensure(self) -> tuple[str, str]:
        """Starts Chromium unless it runs. Returns what happened to earlier pages, and a sentence about it."""
        if self._process is not None and self._process.has_ended:
            self.note_death()
        if self._process is not None:
            return "kept", ""
        lost, self._lost = self._lost, ""
        remembered = _read_state()
        if not lost and remembered.get("running"):
            lost = "it ended together with its driver"
        if lost:
            _forget_profile()
            remembered = {}
        self._start()
        if lost:
            return "lost", f"the browser was started again: {lost}; tabs, logins and form contents are gone"
        if not remembered:
            return "started", ""
        self._restore(remembered)
        return "restored", "the browser had been stopped while idle; its pages were loaded again"

    def _start(self) -> None:
        os.makedirs(PROFILE, mode=0o700, exist_ok=True)
        for name in ("SingletonLock", "SingletonSocket", "SingletonCookie", "DevToolsActivePort"):
            _remove(f"{PROFILE}/{name}")
        begun = Process(PROFILE, task.is_possible(), self._interrupts, self._on_event)
        self._process = begun
        deadline = time.monotonic() + START_PATIENCE
        try:
            begun.pipe.call("Browser.getVersion", deadline=deadline, what="the browser to start")
            only_pages = [{"type": "page"}, {"exclude": True}]
            attach = {"autoAttach": True, "waitForDebuggerOnStart": False, "flatten": True, "filter": only_pages}
            begun.pipe.post("Target.setDiscoverTargets", {"discover": True, "filter": only_pages})
            begun.pipe.post("Target.setAutoAttach", attach)
            self.downloads.allow(begun.pipe)
        except (BrowserCrashed, PageTimeout, Refused) as error:
            stderr = begun.pipe.complaints()
            begun.wait(0.5)
            how = begun.status()
            self._forget_process()
            last = f": {stderr.splitlines()[-1][:300]}" if stderr else ""
            raise NoBrowser(
                f"Chromium did not start ({error}; {how}){last}",
                "a session with more memory or processes may help: limits {memory: \"1G\", pids: 512}",
            ) from error
        except BaseException:
            self._forget_process()
            raise
        _write_state({"running": True})

    def _restore(self, remembered: dict[str, Any]) -> None:
        deadline = time.monotonic() + START_PATIENCE
        try:
            if cookies := remembered.get("cookies"):
                self.pipe.call("Storage.setCookies", {"cookies": cookies}, deadline=deadline)
        except Refused:
            # Chromium refuses all cookies if one is not valid; that is no reason to fail.
            pass
        tabs = [url for url in remembered.get("tabs", []) if isinstance(url, str)][:MAX_TABS]
        for url in tabs:
            self.open_tab(deadline, url)
        at = remembered.get("current", 0)
        if tabs and isinstance(at, int) and 0 <= at < len(tabs):
            self._current = self.tabs()[at]
        if self._current is not None:
            with contextlib.suppress(PageTimeout, BrowserError):
                self._current.wait_until("load", deadline)

    def stop(self) -> None:
        """Stops Chromium and stores cookies, addresses and local storage."""
        if self._process is None:
            return
        state: dict[str, Any] = {"running": False}
        deadline = time.monotonic() + 2.0
        try:
            tabs = [tab for tab in self.tabs() if tab.is_alive and tab.url != "about:blank"]
            for tab in tabs:
                tab.refresh(deadline)
            state["tabs"] = [tab.url for tab in tabs]
            state["current"] = tabs.index(self._current) if self._current in tabs else 0
            state["cookies"] = self._cookies(deadline)
        except (BrowserError, Refused, Interrupted):
            pass
        self._process.end()
        self._forget_process()
        _shrink_profile()
        _write_state(state)

    def forget(self) -> None:
        """Ends Chromium and removes everything that was stored."""
        if self._process is not None:
            self._process.end()
            self._forget_process()
        _forget_profile()

    def _cookies(self, deadline: float) -> list[dict[str, Any]]:
        found = self.pipe.call("Storage.getCookies", deadline=deadline)["cookies"]
        settable = ("name", "value", "domain", "path", "secure", "httpOnly", "sameSite", "partitionKey")
        kept = []
        for cookie in found:
            one = {key: cookie[key] for key in settable if key in cookie}
            if not cookie.get("session"):
                one["expires"] = cookie.get("expires", -1)
            kept.append(one)
        return kept

    def note_death(self, why: str = "") -> str:
        """Called when Chromium has ended: returns how, for this call. The next call reports that its state is lost."""
        how = "it ended"
        if self._process is not None:
            self._process.wait(0.5)
            how = self._process.status()
        self._forget_process()
        self._lost = why or f"it crashed ({how})"
        return how

    def _forget_process(self) -> None:
        if self._process is not None:
            self._process.kill()
        self._process = None
        self._tabs.clear()
        self._by_session.clear()
        self._current = self._side = self._front = None
        self._number = 0
        self.downloads.abandon()

    def handle_events(self) -> None:
        """Handles events of Chromium between two actions."""
        self.pipe.read_available()

    # Tabs.

    def tabs(self) -> list[Tab]:
        return [tab for tab in self._tabs.values() if not tab.is_closed and tab is not self._side]

    def current(self, deadline: float) -> Tab:
        """The current tab. Opens one if there is none."""
        if self._current is None or self._current.is_closed:
            left = self.tabs()
            self._current = left[-1] if left else self.open_tab(deadline)
        return self._ready(self._current, deadline)

    @property
    def current_or_none(self) -> Tab | None:
        return self._current if self._current is not None and not self._current.is_closed else None

    def tab(self, number: int | None, deadline: float) -> Tab:
        if number is None:
            return self.current(deadline)
        for tab in self.tabs():
            if tab.number == number:
                self._current = tab
                return self._ready(tab, deadline)
        there = ", ".join(str(tab.number) for tab in self.tabs()) or "none"
        raise NoTab(f"there is no tab {number}; there are: {there}")

    def open_tab(self, deadline: float, url: str = "about:blank") -> Tab:
        if len(self.tabs()) >= MAX_TABS:
            raise NoTab(f"there are {MAX_TABS} tabs already", "close one first")
        made = self.pipe.call("Target.createTarget", {"url": url}, deadline=deadline, what="a new tab")
        tab = self.pipe.until(lambda: self._tabs.get(made["targetId"]), deadline, "a new tab")
        self._current = tab
        return self._ready(tab, deadline)

    def _ready(self, tab: Tab, deadline: float) -> Tab:
        self.pipe.until(lambda: tab.is_ready or not tab.is_alive, deadline, "the tab")
        # A tab behind another one does not paint.
        if self._front is not tab and tab.is_alive:
            self.pipe.post("Target.activateTarget", {"targetId": tab.target})
            self._front = tab
        return tab

    def close_tab(self, tab: Tab, deadline: float) -> None:
        tab.close(deadline)
        self._tabs.pop(tab.target, None)
        if self._current is tab:
            left = self.tabs()
            self._current = left[-1] if left else None

    def side_tab(self, deadline: float) -> Tab:
        """A tab for screenshots of other pages. It is not listed, and reused, because creating tabs is slow."""
        if self._side is None or not self._side.is_alive:
            before = self.current_or_none
            self._side = self.open_tab(deadline)
            self._current = before
            if self._side.number == self._number:
                # It has no number.
                self._number -= 1
        else:
            self._side.post("Page.setWebLifecycleState", {"state": "active"})
        return self._ready(self._side, deadline)

    def freeze_side_tab(self) -> None:
        """Pauses the page in this tab. Loading an empty page would take longer, and make the next use slower."""
        if self._side is not None and self._side.is_alive and self.runs:
            self._side.post("Page.setWebLifecycleState", {"state": "frozen"})

    def follow_popup(self, opener: Tab, deadline: float) -> Tab | None:
        """The tab that `opener` has just opened, which becomes the current one."""
        if opener.opens_window:
            opener.opens_window = False
            soon = min(deadline, time.monotonic() + POPUP_PATIENCE)
            try:
                self.pipe.until(lambda: any(self._is_new(tab, opener) for tab in self.tabs()), soon, "the new window")
            except PageTimeout:
                # A tab that only starts a download closes at once.
                return None
        for tab in reversed(self.tabs()):
            if self._is_new(tab, opener):
                tab.was_followed = True
                self._current = tab
                return self._ready(tab, deadline)
        return None

    @staticmethod
    def _is_new(tab: Tab, opener: Tab) -> bool:
        return tab.opener == opener.target and not tab.was_followed

    # Events of Chromium.

    def _on_event(self, method: str, params: dict[str, Any], session: str | None) -> None:
        if session is not None:
            tab = self._by_session.get(session)
            if tab is not None:
                tab.on_event(method, params)
        elif method == "Target.attachedToTarget":
            self._attached(params)
        elif method == "Target.detachedFromTarget":
            tab = self._by_session.pop(params.get("sessionId", ""), None)
            if tab is not None:
                tab.is_closed = True
                self._tabs.pop(tab.target, None)
        elif method == "Target.targetInfoChanged":
            info = params["targetInfo"]
            if tab := self._tabs.get(info["targetId"]):
                tab.url, tab.title = info["url"], info["title"]
        elif method == "Target.targetCrashed":
            if tab := self._tabs.get(params.get("targetId", "")):
                tab.is_crashed = True
        elif method.startswith("Browser.download"):
            self.downloads.on_event(method, params)

    def _attached(self, params: dict[str, Any]) -> None:
        info = params["targetInfo"]
        if info["type"] != "page" or info["targetId"] in self._tabs:
            return
        if len(self._tabs) >= MAX_TABS:
            # A page that opens too many windows.
            self.pipe.post("Target.closeTarget", {"targetId": info["targetId"]})
            return
        self._number += 1
        tab = Tab(self.pipe, self._number, params["sessionId"], info)
        self._tabs[tab.target] = tab
        self._by_session[tab.session] = tab
        tab.prepare()


def _read_state() -> dict[str, Any]:
    try:
        with open(STATE) as file:
            state = json.loads(file.read(1 << 20))
        return state if isinstance(state, dict) else {}
    except (OSError, ValueError):
        return {}


def _write_state(state: dict[str, Any]) -> None:
    try:
        os.makedirs(PLACE, mode=0o700, exist_ok=True)
        with open(f"{STATE}.new", "w") as file:
            json.dump(state, file)
        os.replace(f"{STATE}.new", STATE)
    except OSError:
        # No space: the next browser starts without a stored state, and reports that.
        _remove(STATE)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


def _forget_profile() -> None:
    shutil.rmtree(PLACE, ignore_errors=True)


def _shrink_profile() -> None:
    """Removes a profile except the data that pages have stored, unless that is too large."""
    kept = f"{PLACE}/kept"
    shutil.rmtree(kept, ignore_errors=True)
    for name in KEPT:
        source = f"{PROFILE}/{name}"
        if os.path.isdir(source) and _size(source) <= MAX_KEPT_BYTES:
            os.makedirs(os.path.dirname(f"{kept}/{name}"), exist_ok=True)
            os.rename(source, f"{kept}/{name}")
    shutil.rmtree(PROFILE, ignore_errors=True)
    if os.path.isdir(kept):
        os.rename(kept, PROFILE)


def _size(directory: str) -> int:
    total = 0
    for folder, _, files in os.walk(directory):
        total += sum(os.lstat(os.path.join(folder, name)).st_size for name in files)
    return total
