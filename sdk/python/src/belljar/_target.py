"""Where the server is, and what to show it."""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from belljar._version import __version__
from belljar.errors import InvalidRequest

# How long it may take until somebody answers the door.
CONNECT_TIMEOUT = 10.0
# How long a server may take to answer; making a session on a busy machine takes a while.
ANSWER_TIMEOUT = 120.0
# Streams and long requests hold a connection each; more of them wait.
MAX_CONNECTIONS = 1024
# Less than the 30 seconds after which the server hangs up.
IDLE_CONNECTION = 20.0


@dataclass(frozen=True)
class Target:
    """A server by its address, or the local one where there is no address."""

    url: str | None
    api_key: str | None = field(default=None, repr=False)

    @staticmethod
    def find(url: str | None, api_key: str | None) -> Target:
        """From arguments, then the environment. `local` stands for the local server."""
        named = url or os.environ.get("BELLJAR_URL") or os.environ.get("SANDBOX_API_URL") or None
        key = api_key or os.environ.get("BELLJAR_API_KEY") or None
        if key is not None and (not key.isascii() or not key.isprintable()):
            raise InvalidRequest("the API key is not one", hint="`belljar key create` shows what they look like")
        if named is None or named == "local":
            return Target(None, key)
        if socket_of(named) is None:
            _check(named)
        return Target(named.rstrip("/"), key)

    def options(self, socket: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """What to make an httpx client with, and its transport. `socket` is the local server's."""
        path = socket if self.url is None else socket_of(self.url)
        base = "http://localhost" if path or self.url is None else self.url
        headers = {"user-agent": f"belljar-python/{__version__}"}
        if self.api_key is not None:
            headers["authorization"] = f"Bearer {self.api_key}"
        client: dict[str, Any] = {"base_url": base, "headers": headers}
        transport: dict[str, Any] = {}
        if path:
            transport["uds"] = path
        if not base.startswith("https:"):
            # Nothing here is encrypted, and reading certificates takes longer than a whole request.
            # A context that believes nobody keeps this true.
            transport["verify"] = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return client, transport


def socket_of(url: str) -> str | None:
    """The path in `unix:/path`, `unix:///path` or `http+unix://%2Fpath`."""
    if url.startswith("unix:"):
        path = url[len("unix:") :]
        return "/" + path.lstrip("/") if path.startswith("//") else path
    if url.startswith("http+unix://"):
        return unquote(url[len("http+unix://") :]).rstrip("/")
    return None


def _check(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        shown = url if "@" not in url else "...@" + url.rpartition("@")[2]
        raise InvalidRequest(
            f"`{shown}` is no address of a server",
            hint="expected one such as http://127.0.0.1:8000 or unix:/path/of/a/socket",
        )


def is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")
