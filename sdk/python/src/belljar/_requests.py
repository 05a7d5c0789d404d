"""Builds HTTP requests from calls.

Many executions take less than a millisecond. So headers and URLs are cached, and without a proxy requests go directly
to the transport: `httpx.Client` would spend time on redirects, cookies and credentials, which do not occur here.
"""

from __future__ import annotations

import ssl
from functools import lru_cache
from typing import Any

import httpx

from belljar import _retry
from belljar._calls import Call
from belljar._target import CONNECT_TIMEOUT, IDLE_CONNECTION, MAX_CONNECTIONS, Target
from belljar._version import __version__

EVENTS = "text/event-stream"
_JSON = "application/json"

LIMITS = httpx.Limits(
    max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS, keepalive_expiry=IDLE_CONNECTION
)


class Requests:
    def __init__(self, target: Target) -> None:
        self._target = target
        self._url = lru_cache(maxsize=256)(self._parse_url)
        self._headers = lru_cache(maxsize=16)(self._make_headers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._target.base!r})"

    def of(
        self,
        call: Call[Any],
        *,
        accept: str = _JSON,
        content: Any = None,
        length: int | None = None,
        more: tuple[tuple[str, str], ...] = (),
    ) -> httpx.Request:
        body = call.content()
        kind = _JSON if body is not None else None
        if content is not None:
            body, kind = content, "application/octet-stream"
        url = self._url(call.path)
        if call.params:
            url = url.copy_merge_params(call.params)
        headers = self._headers(accept, kind)
        if length is not None or more:
            headers = httpx.Headers(headers)
            headers.update(more)
            if length is not None:
                headers["content-length"] = str(length)
        timeout = _retry.STREAM_TIMEOUT if accept == EVENTS else call.timeout
        timeouts = {"connect": CONNECT_TIMEOUT, "read": timeout, "write": timeout, "pool": timeout}
        return httpx.Request(call.method, url, headers=headers, content=body, extensions={"timeout": timeouts})

    def _parse_url(self, path: str) -> httpx.URL:
        return httpx.URL(self._target.base + path)

    def _make_headers(self, accept: str, kind: str | None) -> httpx.Headers:
        url = self._parse_url("/")
        headers = {
            "host": url.netloc.decode("ascii"),
            "accept": accept,
            "accept-encoding": "identity",
            "user-agent": f"belljar-python/{__version__}",
        }
        if kind is not None:
            headers["content-type"] = kind
        if self._target.api_key is not None:
            headers["authorization"] = f"Bearer {self._target.api_key}"
        return httpx.Headers(headers)


def transport_options(target: Target, socket: str | None) -> dict[str, Any]:
    options: dict[str, Any] = {"limits": LIMITS, "uds": socket}
    if not target.base.startswith("https:"):
        # Nothing is encrypted here, and loading certificates takes longer than a whole request. A context without
        # certificates is fast, and would refuse every TLS server.
        options["verify"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return options
