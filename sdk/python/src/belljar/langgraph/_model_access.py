"""What browser tools need of the network: the pages, and a model that does tasks where only `OPENAI_API_KEY` is set.

The key stays with the server, whose proxy adds it to what the sandbox asks the model. A server that has no such key
(it was started without `OPENAI_API_KEY`, or is for several tenants), or that does not allow the host, makes sessions
without it; then `browser_tool` says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from belljar import _settings, local
from belljar._calls import Network
from belljar.errors import BelljarError, Conflict
from belljar.manager import SessionManager

#: Where pages may come from: `"open"` (every public host), `"none"`, or hosts.
Pages = str | Sequence[str] | Mapping[str, Any] | None

KEY = "OPENAI_API_KEY"
_OPENAI = "https://api.openai.com/v1"
_DEFAULT_MODEL = "gpt-5-mini"

# What Chromium, or the proxy, says of a host that the session may not reach.
_NO_NETWORK = (
    "ERR_TUNNEL_CONNECTION_FAILED", "ERR_NAME_NOT_RESOLVED", "ERR_INTERNET_DISCONNECTED", "ERR_PROXY_CONNECTION_FAILED",
    "is not allowed by",
)  # fmt: skip


@dataclass
class Access:
    """The network that the sessions of a toolkit ask for."""

    manager: SessionManager
    #: With what the model needs; None where nothing is needed.
    wanted: Network | None = None
    #: Without it.
    without: Network | None = None
    #: Who does tasks, to be said once.
    model: str | None = None
    #: Why the sessions do without it.
    refused: str | None = None

    def gave_up(self, error: BelljarError) -> bool:
        """Whether a session can be had without what the model needs, after an attempt with it has failed."""
        about = error.code == "network_not_allowed" or (isinstance(error, Conflict) and "network" in error.message)
        if self.wanted is None or self.refused is not None or not about:
            return False
        self.refused = error.message
        self.manager._network = self.without
        return True

    def introduction(self) -> str | None:
        """Said with the first result of a task."""
        if self.refused is not None or self.model is None:
            return None
        said, self.model = self.model, None
        return said

    def advice(self, error: BelljarError, *, is_task: bool) -> str | None:
        """What to set, for a failure that a setting can help."""
        if is_task and self.refused is not None:
            return (
                f"No model could be reached, because the server refused it: {self.refused}. Start the server with "
                f"{KEY} set (a local one that another program started: `python -m belljar.local stop`; sessions stay), "
                "or set BELLJAR_BROWSER_MODEL and BELLJAR_NETWORK_SECRETS."
            )
        if is_task and "model" in error.message and not _settings.read().get(KEY):
            return f"Set {KEY}, or give BelljarToolkit a browser_model."
        if any(words in error.message for words in _NO_NETWORK):
            return (
                'The sandbox may not reach that host. One setting changes it: BelljarToolkit(network="open") for every '
                'public page, or network=["example.org"] for single hosts; or BELLJAR_NETWORK=open for all sessions.'
            )
        return None


def access(manager: SessionManager, pages: Pages, *, wants_model: bool) -> Access:
    """Lets the sessions of a manager have what browser tools need, unless it was told what they have."""
    if manager._network is not None:
        return Access(manager)
    given = _settings.read()
    allowed = _rules(pages if pages is not None else given.get("BELLJAR_NETWORK"))
    if isinstance(allowed, Mapping):
        manager._network = allowed
        return Access(manager)
    without: Network | None = {"allow": allowed} if allowed else None
    manager._network = without if pages is not None else None
    if not wants_model or not given.get(KEY):
        return Access(manager)
    url = given.get("OPENAI_BASE_URL") or _OPENAI
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return Access(manager)
    inject = {"host": parts.netloc, "header": "Authorization", "value_from": KEY}
    if parts.scheme == "https":
        inject["tls"] = "terminate"
    wanted: Network = {"allow": [*allowed, parts.netloc], "inject": [inject]}
    model = given.get("BELLJAR_BROWSER_MODEL") or _DEFAULT_MODEL
    said = (
        f"Browser tasks are done by {model} at {parts.netloc}. The key is added on the way and is not in the sandbox, "
        f"whose code may reach {'every public host' if '*:*' in allowed else ', '.join([*allowed, parts.netloc])}."
    )
    local.pass_model_key()
    found = Access(manager, wanted, manager._network, said)
    manager._network = wanted
    return found


def _rules(pages: Pages) -> list[str] | Mapping[str, Any]:
    if isinstance(pages, Mapping):
        return pages
    words = (pages or "").replace(",", " ").split() if isinstance(pages, str) or pages is None else list(pages)
    return ["*:*" if word == "open" else word for word in words if word != "none"]
