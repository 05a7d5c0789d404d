"""Keys of sessions that are made of two parts."""

from __future__ import annotations

_BETWEEN = "::"


def joined(scope: str, name: str) -> str:
    """One key for a scope and a name in it, which no other two have.

    Names may come from anybody, such as the ids of conversations, and must not lead out of their
    scope: so the scope has no colon of its own, and ends at the first two. Without a scope the name is
    the key, unless it looks as if it had one.
    """
    if not scope and _BETWEEN not in name:
        return name
    escaped = scope.replace("%", "%25").replace(":", "%3A")
    return f"{escaped}{_BETWEEN}{name}"
