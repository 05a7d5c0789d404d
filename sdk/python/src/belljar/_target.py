"""The address of the server, and the API key for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from belljar import _settings
from belljar.errors import InvalidRequest

# Seconds to connect.
CONNECT_TIMEOUT = 10.0
# Seconds for a response: creating a session on a busy machine is slow.
RESPONSE_TIMEOUT = 120.0
# Each stream and each long request holds a connection; more of them wait.
MAX_CONNECTIONS = 1024
# Less than the 30 seconds after which the server closes an idle connection.
IDLE_CONNECTION = 20.0


@dataclass(frozen=True)
class Target:
    """A server with its address, or the local server if `url` is None."""

    url: str | None
    api_key: str | None = field(default=None, repr=False)

    @staticmethod
    def find(url: str | None, api_key: str | None) -> Target:
        """Reads the arguments, then the environment, then `.env`. The address `local` selects the local server."""
        settings = _settings.read()
        named = url or settings.get("BELLJAR_URL") or settings.get("SANDBOX_API_URL")
        key = api_key or settings.get("BELLJAR_API_KEY")
        if key is not None and (not key.isascii() or not key.isprintable()):
            raise InvalidRequest("the API key has characters that no key has", hint="`belljar key create` makes a key")
        if named is None or named == "local":
            return Target(None, key)
        if socket_of(named) is None:
            _check(named)
        return Target(named.rstrip("/"), key)

    @property
    def base(self) -> str:
        """The beginning of every URL."""
        return "http://localhost" if self.url is None or socket_of(self.url) else self.url

    def socket(self, local: str | None) -> str | None:
        """The UNIX socket to connect to, if any; `local` is the socket of the local server."""
        return local if self.url is None else socket_of(self.url)

    @property
    def may_need_proxy(self) -> bool:
        """Whether a proxy may be needed: only for servers on other machines."""
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
            f"`{shown}` is not the address of a server",
            hint="expected an address such as http://127.0.0.1:8000 or unix:/path/of/a/socket",
        )


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")
