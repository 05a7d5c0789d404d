"""Reads objects of Kubernetes into the types of its API. A field that no type has is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
from lightkube.codecs import from_dict

#: Kinds that are not part of Kubernetes, by the fields that the chart uses.
FOREIGN = json.loads((Path(__file__).parent / "schemas.json").read_text())


def check(document: dict[str, Any]) -> None:
    """Fails unless the types of the API hold exactly what was written."""
    schema = FOREIGN.get(document["kind"])
    if schema is None:
        read = from_dict(document).to_dict()
        assert read == document, f"{document['kind']} {document['metadata']['name']}: {differences(document, read)}"
    else:
        assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
        jsonschema.validate(document["spec"], schema)


def differences(written: Any, read: Any, path: str = "") -> list[str]:
    """Names the fields that the types do not have."""
    if isinstance(written, dict) and isinstance(read, dict):
        return [line for key in written for line in differences(written[key], read.get(key), f"{path}.{key}")]
    if isinstance(written, list) and isinstance(read, list) and len(written) == len(read):
        return [line for i, (a, b) in enumerate(zip(written, read)) for line in differences(a, b, f"{path}[{i}]")]
    return [] if written == read else [f"{path}: wrote {written!r}, read {read!r}"]
