"""Where the server is, and what to show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from belljar import _settings
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
        """From arguments, then the environment, then `.env`. `local` stands for the local server."""
        settings = _settings.read()
        named = url or settings.get("BELLJAR_URL") or settings.get("SANDBOX_API_URL")
        key = api_key or settings.get("BELLJAR_API_KEY")
        if key is not None and (not key.isascii() or not key.isprintable()):
            raise InvalidRequest("the API key is not one", hint="`belljar key create` shows what they look like")
        if named is None or named == "local":
            return Target(None, key)
        if socket_of(named) is None:
            _check(named)
        return Target(named.rstrip("/"), key)

    @property
    def base(self) -> str:
        """What every URL begins with."""
        return "http://localhost" if self.url is None or socket_of(self.url) else self.url

    def socket(self, local: str | None) -> str | None:
        """The UNIX socket to use, if one is; `local` is the local server's."""
        return local if self.url is None else socket_of(self.url)

    @property
    def may_need_proxy(self) -> bool:
        """No proxy stands between us and ourselves; between us and the world one may."""
        return self.url is not None and socket_of(self.url) is None and not _is_loopback(self.url)


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


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")
