"""The errors of actions. `code` is for programs and part of the API; the rest is for people."""

from __future__ import annotations


class BrowserError(Exception):
    code = "browser_failed"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Invalid(BrowserError):
    """The request is not valid."""

    code = "invalid"


class NoBrowser(BrowserError):
    """There is no Chromium in the image, or it does not start."""

    code = "no_browser"


class BrowserCrashed(BrowserError):
    """Chromium as a whole has ended."""

    code = "browser_crashed"


class PageCrashed(BrowserError):
    """The process behind a tab has ended."""

    code = "page_crashed"


class NoTab(BrowserError):
    code = "no_such_tab"


class PageTimeout(BrowserError):
    """A page was not ready in time."""

    code = "page_timeout"


class NavigationFailed(BrowserError):
    """A page could not be loaded; the message has Chromium's error (`net::ERR_...`)."""

    code = "navigation_failed"


class NoElement(BrowserError):
    code = "no_such_element"


class StaleRef(BrowserError):
    """A `ref` from a snapshot of another page."""

    code = "stale_ref"


class NotUsable(BrowserError):
    """The element exists but cannot be used: hidden, covered, disabled."""

    code = "element_not_usable"


class ScriptFailed(BrowserError):
    code = "script_failed"


class DownloadFailed(BrowserError):
    code = "download_failed"


class TooLarge(BrowserError):
    code = "answer_too_large"


class TaskFailed(BrowserError):
    """browser-use ended without an answer."""

    code = "task_failed"


class NoBrowserUse(BrowserError):
    code = "no_browser_use"


class Interrupted(Exception):
    """The action was interrupted."""


class Refused(Exception):
    """Chromium returned an error; the caller interprets it."""
