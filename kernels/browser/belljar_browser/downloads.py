"""Downloads. A file has a name of Chromium until it is complete, and then gets its own."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import time
from email.message import Message
from typing import Any
from urllib.parse import unquote, urlsplit

from belljar_browser.errors import DownloadFailed, PageTimeout, Refused
from belljar_browser.pipe import Pipe

DIRECTORY = "/session/downloads"
_ARRIVING = "/session/downloads/.arriving"
MAX_KNOWN = 100
MAX_NAME = 200
_PIECE = 1 << 20


class Downloads:
    def __init__(self) -> None:
        # By Chromium's name: the address, the file name, and the progress.
        self._known: dict[str, dict[str, Any]] = {}

    def allow(self, pipe: Pipe) -> None:
        where = {"behavior": "allowAndName", "downloadPath": _ARRIVING, "eventsEnabled": True}
        pipe.post("Browser.setDownloadBehavior", where)

    def abandon(self) -> None:
        self._known.clear()

    def on_event(self, method: str, params: dict[str, Any]) -> None:
        if method == "Browser.downloadWillBegin":
            if len(self._known) >= MAX_KNOWN:
                self._known.pop(next(iter(self._known)))
            self._known[params["guid"]] = {
                "url": params["url"],
                "name": params["suggestedFilename"],
                "state": "inProgress",
                "reported": False,
            }
        elif method == "Browser.downloadProgress" and (known := self._known.get(params["guid"])):
            known["state"] = params["state"]
            if params["state"] == "completed" and "path" not in known:
                known["path"] = _arrived(params, known["name"])
                known["size"] = _size(known["path"])
            elif params["state"] == "canceled":
                _remove(f"{_ARRIVING}/{params['guid']}")

    def begun(self) -> list[dict[str, Any]]:
        """Downloads that were not reported yet."""
        return [known for known in self._known.values() if not known["reported"]]

    def take(self) -> list[dict[str, Any]]:
        """Complete downloads that were not reported yet."""
        complete = [known for known in self.begun() if known["state"] != "inProgress"]
        for known in complete:
            known["reported"] = True
        return [_info(known) for known in complete if known.get("path")]

    def wait(self, pipe: Pipe, deadline: float) -> dict[str, Any]:
        """The next complete download, if one has begun by the deadline."""
        def ended() -> dict[str, Any] | None:
            return next((known for known in self.begun() if known["state"] != "inProgress"), None)

        try:
            known = pipe.until(ended, deadline, "a download")
        except PageTimeout:
            if self.begun():
                raise PageTimeout("the download did not end in time", "give it more time (`timeout`)") from None
            raise DownloadFailed("no download has begun", "if the page shows it, `download` its `url`") from None
        known["reported"] = True
        if not known.get("path"):
            what = f"the download of {known['url'][:500]} failed"
            raise DownloadFailed(what, "check that the session has enough space")
        return _info(known)


def fetch(tab: Any, url: str, name: str | None, deadline: float) -> dict[str, Any]:
    """Downloads a file by its address, with the session's cookies, even if a browser would show it."""
    what = {"frameId": tab.target, "url": url, "options": {"disableCache": True, "includeCredentials": True}}
    try:
        answer = tab.call("Network.loadNetworkResource", what, deadline=deadline, what=url)["resource"]
    except Refused as error:
        raise DownloadFailed(f"{url}: {error}") from None
    status = answer.get("httpStatusCode")
    handle = answer.get("stream")
    if not answer.get("success") or handle is None:
        reason = f"HTTP status {round(status)}" if status else answer.get("netErrorName", "it could not be loaded")
        raise DownloadFailed(f"{url}: {reason}")
    headers = {key.lower(): value for key, value in answer.get("headers", {}).items()}
    os.makedirs(_ARRIVING, exist_ok=True)
    arriving = f"{_ARRIVING}/{time.monotonic_ns()}"
    try:
        with open(arriving, "wb") as file:
            while True:
                piece = tab.call("IO.read", {"handle": handle, "size": _PIECE}, deadline=deadline, what=url)
                data = piece["data"]
                file.write(base64.b64decode(data) if piece.get("base64Encoded") else data.encode())
                if piece.get("eof"):
                    break
        path = _settle(arriving, name or _name(url, headers))
    except OSError as error:
        _remove(arriving)
        raise DownloadFailed(f"{url} cannot be written: {error.strerror}") from None
    except BaseException:
        _remove(arriving)
        raise
    finally:
        tab.post("IO.close", {"handle": handle})
    info = {"url": url, "path": path, "size": _size(path)}
    if mime := headers.get("content-type"):
        info["mime"] = mime.split(";")[0].strip()
    return info


def _arrived(params: dict[str, Any], name: str) -> str:
    """The path of a complete download; None if it could not be moved there."""
    own = f"{_ARRIVING}/{params['guid']}"
    try:
        if os.path.exists(own):
            return _settle(own, name)
    except OSError:
        return ""
    # browser-use has set another directory while it does a task.
    there = params.get("filePath") or f"{DIRECTORY}/{os.path.basename(name)}"
    return there if os.path.isfile(there) else ""


def _info(known: dict[str, Any]) -> dict[str, Any]:
    return {"url": known["url"][:4000], "path": known["path"], "size": known["size"]}


def _name(url: str, headers: dict[str, str]) -> str:
    if disposition := headers.get("content-disposition"):
        message = Message()
        message["content-disposition"] = disposition
        if found := message.get_filename():
            return found
    return unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2])


def _settle(arrived: str, name: str) -> str:
    """Moves a file to a new name in the directory of downloads."""
    plain = re.sub(r"[\x00-\x1f\x7f/\\]", "_", name).strip().lstrip(".")[:MAX_NAME] or "download"
    stem, dot, ending = plain.partition(".")
    number = 0
    while True:
        path = f"{DIRECTORY}/{plain}" if number == 0 else f"{DIRECTORY}/{stem} ({number}){dot}{ending}"
        try:
            # `link` never replaces an existing file.
            os.link(arrived, path)
            os.unlink(arrived)
            return path
        except FileExistsError:
            number += 1
        except OSError:
            if number > 1000:
                raise
            os.replace(arrived, path)
            return path


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
