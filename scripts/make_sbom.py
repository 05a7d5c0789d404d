#!/usr/bin/env python3
"""Lists what is in a container image of Belljar, as CycloneDX 1.5: crates, packages of Debian and of Python.

The crates come from `cargo metadata` and Cargo.lock, the other packages from lists that scripts/make-image wrote in the
image. The same input gives the same file. With --key (ed25519, PEM) it is signed; verify it with

    openssl pkeyutl -verify -pubin -inkey public.pem -rawin -in FILE -sigfile FILE.sig
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import quote

import make_wheel
import tomllib

Component = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description="Lists what is in a container image of Belljar, as CycloneDX 1.5.")
    parser.add_argument("--name", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--deb", type=Path, help="lines of `name version architecture`")
    parser.add_argument("--pypi", type=Path, help="lines of `name==version`")
    parser.add_argument("--key", type=Path, help="a private key (ed25519, PEM) that signs the file")
    arguments = parser.parse_args()
    components = crates()
    components += debian(arguments.deb.read_text()) if arguments.deb else []
    components += python(arguments.pypi.read_text()) if arguments.pypi else []
    arguments.output.write_text(json.dumps(document(arguments.name, arguments.version, components), indent=1) + "\n")
    signature = arguments.output.with_name(arguments.output.name + ".sig")
    # An older signature would not fit.
    signature.unlink(missing_ok=True)
    if arguments.key:
        command = ["openssl", "pkeyutl", "-sign", "-inkey", arguments.key, "-rawin", "-in", arguments.output]
        subprocess.run([*command, "-out", signature], check=True)


def document(name: str, version: str, components: list[Component]) -> dict[str, Any]:
    """Returns the list with a serial number that depends only on its contents."""
    digest = hashlib.sha256(json.dumps([name, version, components]).encode()).hexdigest()
    image = {"type": "container", "bom-ref": f"{name}:{version}", "name": name, "version": version}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {"component": {**image, "licenses": [{"license": {"id": "Apache-2.0"}}]}},
        "components": components,
    }


def crates() -> list[Component]:
    """Returns the crates that are linked into the binary, with the checksums of Cargo.lock."""
    lock = tomllib.loads((make_wheel.ROOT / "Cargo.lock").read_text())["package"]
    checksums = {(package["name"], package["version"]): package.get("checksum") for package in lock}
    components = []
    for crate in make_wheel.crates()["components"]:
        checksum = checksums[crate["name"], crate["version"]]
        hashes = {"hashes": [{"alg": "SHA-256", "content": checksum}]} if checksum else {}
        components.append({**crate, "bom-ref": crate["purl"], **hashes})
    return components


def debian(text: str) -> list[Component]:
    """Returns Debian's packages."""
    components = []
    for line in sorted(text.splitlines()):
        name, version, architecture = line.split()
        purl = f"pkg:deb/debian/{quote(name)}@{quote(version, safe='')}?arch={architecture}"
        components.append({"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl})
    return components


def python(text: str) -> list[Component]:
    """Returns the packages of the sandboxes' Python environment."""
    components = []
    for line in sorted(text.splitlines()):
        name, version = line.split("==")
        purl = f"pkg:pypi/{name.lower().replace('_', '-')}@{quote(version, safe='')}"
        components.append({"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl})
    return components


if __name__ == "__main__":
    main()
