"""What can go wrong. `code` is for programs and part of the API; the rest is for people."""

from __future__ import annotations


class BrowserError(Exception):
    code = "browser_failed"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Invalid(BrowserError):
    """What was asked for makes no sense."""

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
    """A page did not do in time what was waited for."""

    code = "page_timeout"


class NavigationFailed(BrowserError):
    """A page could not be had; the message has Chromium's own name for it (`net::ERR_...`)."""

    code = "navigation_failed"


class NoElement(BrowserError):
    code = "no_such_element"


class StaleRef(BrowserError):
    """A name of a snapshot whose page is no longer there."""

    code = "stale_ref"


class NotUsable(BrowserError):
    """The element is there, and cannot be used: hidden, covered, disabled."""

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
    """Somebody asked us to stop."""


class Refused(Exception):
    """Chromium did not do what it was told, in its own words; whoever asked knows what that means."""
