"""Session keys that consist of a scope and a name."""

from __future__ import annotations

_SEPARATOR = "::"


def joined(scope: str, name: str) -> str:
    """A key that is unique for this scope and this name.

    Names, such as ids of conversations, are not trusted and must not reach another scope. So colons in the scope are
    escaped, and the first `::` ends the scope. Without a scope the key is the name, unless the name contains `::`.
    """
    if not scope and _SEPARATOR not in name:
        return name
    escaped = scope.replace("%", "%25").replace(":", "%3A")
    return f"{escaped}{_SEPARATOR}{name}"
