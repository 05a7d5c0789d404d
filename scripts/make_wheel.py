#!/usr/bin/env python3
"""Makes the Python wheel from a binary that is built already: scripts/make_wheel.py BINARY DIRECTORY [--fast]

The wheel has the package below sdk/python/src, the commands below sdk/python/data/scripts, the binary, and a list of
the crates in the binary (CycloneDX). The metadata comes from sdk/python/pyproject.toml.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import platform
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "sdk" / "python"
# The binary is static: it runs with any C library. These are the oldest tags that pip accepts for each architecture.
PLATFORMS = {
    "x86_64": "manylinux_2_5_x86_64.manylinux1_x86_64",
    "aarch64": "manylinux_2_17_aarch64.manylinux2014_aarch64",
}


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the Python wheel from a binary that is built already.")
    parser.add_argument("binary", type=Path)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--fast", action="store_true", help="do not compress: for tests")
    arguments = parser.parse_args()
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    base = f"{project['name']}-{project['version']}"
    tag = f"py3-none-{PLATFORMS[platform.machine()]}"
    arguments.directory.mkdir(parents=True, exist_ok=True)
    for old in arguments.directory.glob(f"{project['name']}-*.whl"):
        old.unlink()
    path = arguments.directory / f"{base}-{tag}.whl"
    files = dict(contents(project, base, tag, arguments.binary))
    write(path, files, f"{base}.dist-info", fast=arguments.fast)
    print(path)


def contents(project: dict[str, Any], base: str, tag: str, binary: Path) -> Iterator[tuple[str, bytes]]:
    """Names and contents of the files in the wheel, without RECORD."""
    source = PACKAGE / "src"
    for path in sorted(source.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            yield str(path.relative_to(source)), path.read_bytes()
    scripts = [binary, *sorted((PACKAGE / "data" / "scripts").iterdir())]
    for script in scripts:
        yield f"{base}.data/scripts/{script.name}", script.read_bytes()
    information = f"{base}.dist-info"
    yield f"{information}/METADATA", metadata(project).encode()
    yield f"{information}/WHEEL", wheel_metadata(tag).encode()
    yield f"{information}/entry_points.txt", entry_points(project).encode()
    yield f"{information}/sboms/belljar.cyclonedx.json", json.dumps(crates(), indent=1).encode()


def metadata(project: dict[str, Any]) -> str:
    """The core metadata (PEP 643 and PEP 639)."""
    lines = ["Metadata-Version: 2.4"]
    fields = {
        "Name": "name", "Version": "version", "Summary": "description", "License-Expression": "license",
        "Requires-Python": "requires-python",
    }
    lines += [f"{field}: {project[key]}" for field, key in fields.items()]
    lines.append(f"Keywords: {','.join(project['keywords'])}")
    lines += [f"Classifier: {classifier}" for classifier in project["classifiers"]]
    lines += [f"Requires-Dist: {needed}" for needed in project["dependencies"]]
    for extra, packages in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f"Requires-Dist: {needed} ; extra == '{extra}'" for needed in packages]
    lines.append("Description-Content-Type: text/markdown; charset=UTF-8; variant=GFM")
    return "\n".join(lines) + "\n\n" + (PACKAGE / project["readme"]).read_text()


def wheel_metadata(tag: str) -> str:
    python, abi, platforms = tag.split("-")
    tags = [f"Tag: {python}-{abi}-{name}" for name in platforms.split(".")]
    return "\n".join(["Wheel-Version: 1.0", "Generator: belljar make_wheel", "Root-Is-Purelib: false", *tags]) + "\n"


def entry_points(project: dict[str, Any]) -> str:
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name}={value}" for name, value in entries.items())]
    return "\n".join(lines) + "\n"


def crates() -> dict[str, Any]:
    """The crates that the binary is built from, as a CycloneDX document."""
    target = f"{platform.machine()}-unknown-linux-gnu"
    command = ["cargo", "metadata", "--locked", "--format-version", "1", "--filter-platform", target]
    graph = json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True).stdout)
    packages = {package["id"]: package for package in graph["packages"]}
    nodes = {node["id"]: node for node in graph["resolve"]["nodes"]}
    seen: set[str] = set()
    waiting = [package["id"] for package in graph["packages"] if package["name"] == "belljar"]
    while waiting:
        current = waiting.pop()
        if current not in seen:
            seen.add(current)
            # `kind` is null for what the program is linked with; tests and build scripts are not in the binary.
            needed = [dep for dep in nodes[current]["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
            waiting += [dep["pkg"] for dep in needed]
    found = sorted((packages[key]["name"], packages[key]["version"], packages[key]["license"] or "") for key in seen)
    components = []
    for name, version, licence in found:
        component = {"type": "library", "name": name, "version": version, "purl": f"pkg:cargo/{name}@{version}"}
        components.append({**component, "licenses": [{"expression": licence}]})
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "components": components}


def write(path: Path, files: dict[str, bytes], information: str, *, fast: bool) -> None:
    """Writes the archive. The same contents give the same bytes: all files have the same date."""
    record = []
    method = zipfile.ZIP_STORED if fast else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(content)}\n")
            archive.writestr(entry(name, method), content)
        listed = f"{information}/RECORD"
        archive.writestr(entry(listed, method), "".join(record) + f"{listed},,\n")


def entry(name: str, method: int) -> zipfile.ZipInfo:
    information = zipfile.ZipInfo(name)
    information.compress_type = method
    mode = 0o755 if ".data/scripts/" in name else 0o644
    information.external_attr = (0o100000 | mode) << 16
    return information


if __name__ == "__main__":
    main()
