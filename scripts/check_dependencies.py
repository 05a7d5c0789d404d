#!/usr/bin/env python3
"""Checks what deny.toml says about licences, sources and wildcard versions of crates, with `cargo metadata` alone.

`cargo deny` checks the same and takes minutes to build; only `make advisories` needs it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    config = tomllib.loads((ROOT / "deny.toml").read_text())
    command = ["cargo", "metadata", "--locked", "--all-features", "--format-version", "1"]
    graph = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    allowed = set(config["licenses"]["allow"])
    problems = [problem for package in graph["packages"] for problem in check(package, allowed)]
    for problem in sorted(problems):
        print(problem, file=sys.stderr)
    if problems:
        sys.exit(1)
    print(f"licences, sources and versions of {len(graph['packages'])} crates are as deny.toml says")


def check(package: dict[str, Any], allowed: set[str]) -> list[str]:
    name = f"{package['name']} {package['version']}"
    problems = []
    licence = package["license"]
    if not licence:
        problems.append(f"{name}: names no licence")
    elif not is_allowed(licence, allowed):
        problems.append(f"{name}: the licence `{licence}` is not in deny.toml")
    # Crates of this workspace have no source.
    source = package["source"]
    if source and not source.startswith("registry+"):
        problems.append(f"{name}: comes from {source}")
    if not source:
        wild = [needed["name"] for needed in package["dependencies"] if needed["req"] == "*" and not needed.get("path")]
        problems += [f"{name}: needs any version of {other}" for other in wild]
    return problems


def is_allowed(expression: str, allowed: set[str]) -> bool:
    """Whether an SPDX expression can be satisfied with allowed licences. `A/B` is an old form of `A OR B`."""
    tokens = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))

    def either() -> bool:
        holds = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            holds = both() or holds
        return holds

    def both() -> bool:
        holds = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            holds = one() and holds
        return holds

    def one() -> bool:
        token = tokens.pop(0)
        if token == "(":
            holds = either()
            tokens.pop(0)
            return holds
        if tokens and tokens[0] == "WITH":
            token = f"{token} {tokens.pop(0)} {tokens.pop(0)}"
        return token in allowed

    return either() and not tokens


if __name__ == "__main__":
    main()
