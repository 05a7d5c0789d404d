"""The network access that browser tools need: to pages, and to the model that does tasks if only `OPENAI_API_KEY` is
set.

The key stays on the server, whose proxy adds it to the sandbox's requests to the model. A server without this key
(started without `OPENAI_API_KEY`, or for several tenants), or that does not allow the model's host, creates sessions
without this access; then `browser_tool` answers with what to set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from belljar import _settings, local
from belljar._options import Network
from belljar.errors import BelljarError, Conflict
from belljar.manager import SessionManager

#: Hosts that pages may be loaded from: `"open"` (every public host), `"none"`, or a list.
Pages = str | Sequence[str] | Mapping[str, Any] | None

KEY = "OPENAI_API_KEY"
_OPENAI = "https://api.openai.com/v1"
_DEFAULT_MODEL = "gpt-5-mini"

# Errors of Chromium and the proxy for a host that the session may not reach.
_NO_NETWORK = (
    "ERR_TUNNEL_CONNECTION_FAILED", "ERR_NAME_NOT_RESOLVED", "ERR_INTERNET_DISCONNECTED", "ERR_PROXY_CONNECTION_FAILED",
    "is not allowed by",
)  # fmt: skip


@dataclass
class BrowserAccess:
    """The network policy that the sessions of a toolkit request."""

    manager: SessionManager
    #: The policy with access to the model; None if no such access is needed.
    with_model: Network | None = None
    #: The policy without it.
    without_model: Network | None = None
    #: Which model does tasks, for the first answer.
    description: str | None = None
    #: Why the server refused the policy with access to the model.
    refused: str | None = None

    def without_model_after(self, error: BelljarError) -> bool:
        """Continues without access to the model if the server refused the session because of it."""
        is_about_network = error.code == "network_not_allowed" or (
            isinstance(error, Conflict) and "network" in error.message
        )
        if self.with_model is None or self.refused is not None or not is_about_network:
            return False
        self.refused = error.message
        self.manager.network = self.without_model
        return True

    def introduction(self) -> str | None:
        """The description of the model, for the first answer only."""
        if self.refused is not None or self.description is None:
            return None
        text, self.description = self.description, None
        return text

    def advice(self, error: BelljarError, *, is_task: bool) -> str | None:
        """Which setting would prevent this error, if any."""
        if is_task and self.refused is not None:
            return (
                f"No model could be reached, because the server refused the access: {self.refused}. Start the server "
                f"with {KEY} set (a local one that another program started: `python -m belljar.local stop`; sessions "
                "are kept), or set BELLJAR_BROWSER_MODEL and BELLJAR_NETWORK_SECRETS."
            )
        if is_task and "model" in error.message and not _settings.read().get(KEY):
            return f"Set {KEY}, or give BelljarToolkit a browser_model."
        if any(text in error.message for text in _NO_NETWORK):
            return (
                'The sandbox may not reach that host. One setting changes it: BelljarToolkit(network="open") for every '
                'public page, or network=["example.org"] for single hosts; or BELLJAR_NETWORK=open for all sessions.'
            )
        return None


def browser_access(manager: SessionManager, pages: Pages, *, wants_model: bool) -> BrowserAccess:
    """Sets the network policy of a manager for browser tools, unless the manager has one."""
    if manager.network is not None:
        return BrowserAccess(manager)
    given = _settings.read()
    allowed = _rules(pages if pages is not None else given.get("BELLJAR_NETWORK"))
    if isinstance(allowed, Mapping):
        manager.network = allowed
        return BrowserAccess(manager)
    without_model: Network | None = {"allow": allowed} if allowed and pages is not None else None
    manager.network = without_model
    if not wants_model or not given.get(KEY):
        return BrowserAccess(manager)
    url = given.get("OPENAI_BASE_URL") or _OPENAI
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        return BrowserAccess(manager)
    inject = {"host": parts.netloc, "header": "Authorization", "value_from": KEY}
    if parts.scheme == "https":
        inject["tls"] = "terminate"
    with_model: Network = {"allow": [*allowed, parts.netloc], "inject": [inject]}
    model = given.get("BELLJAR_BROWSER_MODEL") or _DEFAULT_MODEL
    hosts = "every public host" if "*:*" in allowed else ", ".join([*allowed, parts.netloc])
    description = (
        f"Browser tasks are done by {model} at {parts.netloc}. The server's proxy adds the key, which is not in the "
        f"sandbox. Code in the sandbox may reach {hosts}."
    )
    local.pass_model_key()
    manager.network = with_model
    return BrowserAccess(manager, with_model, without_model, description)


def _rules(pages: Pages) -> list[str] | Mapping[str, Any]:
    if isinstance(pages, Mapping):
        return pages
    words = (pages or "").replace(",", " ").split() if isinstance(pages, str) or pages is None else list(pages)
    return ["*:*" if word == "open" else word for word in words if word != "none"]
