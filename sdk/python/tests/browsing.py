"""A small web site for a session to serve to itself, and what a model says that browses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from servers import REPOSITORY

SHOP = (REPOSITORY / "tests" / "api" / "browser_shop.py").read_text()


def has_chromium() -> bool:
    return os.access("/usr/lib/chromium/chromium", os.X_OK)


def has_browser_use() -> bool:
    home = Path(os.environ.get("BELLJAR_HOME") or "/var/lib/belljar")
    return has_chromium() and (home / "browser-use" / "belljar.json").exists()


def step(goal: str, **action: dict[str, Any]) -> dict[str, Any]:
    """What the model of browser-use says: where it wants to get, and what to do for it."""
    return {"evaluation_previous_goal": "", "memory": "", "next_goal": goal, "action": [action]}
