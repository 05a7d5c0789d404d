"""Sends requests to a live session, and makes them short. Valid values stay valid, invalid ones invalid."""

from __future__ import annotations

import os
from itertools import count
from typing import Any

import schemathesis

# Upper limits for waiting times, and lower limits for values that make sessions slow or short.
AT_MOST = {"timeout": 3.0, "wait_ms": 50, "max_steps": 2}
AT_LEAST = {"cpus": 0.5, "pids": 64, "ttl": 600, "idle_timeout": 600}

SESSION = os.environ["BELLJAR_SESSION"]
# Every n-th request keeps its own session id: unknown, or of an ended session.
ELSEWHERE = 4
numbers = count()


@schemathesis.hook
def before_call(_: schemathesis.HookContext, case: schemathesis.Case, __: dict[str, Any]) -> None:
    if isinstance(case.body, dict):
        limits = case.body.get("limits")
        for body in (case.body, limits if isinstance(limits, dict) else {}):
            shorten(body)
    by_links = case.meta is not None and case.meta.phase.name.value == "stateful"
    ends_it = case.method == "DELETE" and case.path == "/v1/sessions/{id}"
    if case.path.startswith("/v1/sessions/{id}") and not by_links and not ends_it and next(numbers) % ELSEWHERE:
        case.path_parameters["id"] = SESSION


def shorten(body: dict[str, Any]) -> None:
    for name, most in AT_MOST.items():
        if is_number(body.get(name)) and most < body[name] <= 31_622_400:
            body[name] = most
    for name, least in AT_LEAST.items():
        if is_number(body.get(name)) and 0.01 <= body[name] < least:
            body[name] = least


def is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
