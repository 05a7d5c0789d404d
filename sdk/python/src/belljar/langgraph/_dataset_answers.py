"""Answers of the tools for datasets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from belljar._files import Source
from belljar.errors import BelljarError
from belljar.langgraph._render import line_of, note, section, size_of
from belljar.langgraph._tool import Answer, origin
from belljar.manager import Opened
from belljar.models import Dataset, DatasetList, Exports

_PARQUET = b"PAR1"
_MAX_LISTED = 100
_MAX_COLUMNS = 40


def name_of(dataset_id: str, content: Source) -> str:
    """The file name of a dataset."""
    is_parquet = isinstance(content, (bytes, bytearray)) and bytes(content[:4]) == _PARQUET
    return f"{dataset_id}.parquet" if is_parquet and not dataset_id.endswith(".parquet") else dataset_id


def find(listing: DatasetList, dataset_id: str) -> Dataset | None:
    """The dataset with this id, if it is loaded."""
    names = (dataset_id, f"{dataset_id}.parquet")
    return next((known for known in listing.datasets if known.name in names and known.status == "LOADED"), None)


def plain_names(names: Sequence[str] | None) -> list[str] | None:
    """Names without the directory, which models often add."""
    return [name.removeprefix("/session/data/") for name in names] if names else None


def selected(opened: Opened[Any], dataset_id: str, dataset: Dataset, *, existed: bool = False) -> Answer:
    if dataset.status == "FAILED":
        return failed(opened, dataset_id, dataset.reason or "its source did not return it")
    how = "is there already" if existed else "was loaded"
    text = f"Dataset `{dataset_id}` {how}: {_describe(dataset)}"
    artifact = {"status": dataset.status, "dataset": dataset.model_dump(mode="json"), **origin(opened)}
    return _joined(opened, text), artifact


def failed(opened: Opened[Any], dataset_id: str, error: object) -> Answer:
    if isinstance(error, BelljarError):
        reason = error.message
    elif isinstance(error, Exception):
        reason = f"{type(error).__name__}: {error}"
    else:
        reason = str(error)
    artifact = {"status": "FAILED", "dataset": None, "message": reason, **origin(opened)}
    return _joined(opened, f"Dataset `{dataset_id}` could not be loaded: {reason}"), artifact


def listed(opened: Opened[Any], listing: DatasetList) -> Answer:
    lines = [f"- {_describe(dataset)}" for dataset in listing.datasets[:_MAX_LISTED]]
    more = listing.more + max(0, len(listing.datasets) - _MAX_LISTED)
    if more:
        lines.append(f"- and {more} more")
    where = {"LOCAL_RO": " in /data", "API": " in /session/data"}.get(listing.access, "")
    nothing = f"There are no datasets{where} yet." if where else listing.message or "There are no datasets."
    text = f"Datasets{where}:\n" + "\n".join(lines) if lines else nothing
    return _joined(opened, text), {"status": "ok", **listing.model_dump(mode="json"), **origin(opened)}


def exported(opened: Opened[Any], exports: Exports) -> Answer:
    text = "\n".join(f"- {line_of(export)}" for export in exports.exports)
    refused = "\n".join(f"- {refusal.path}: {refusal.reason}" for refusal in exports.refused)
    first = section("exported", text) or "Nothing was exported: /session/data has no such files."
    whole = "\n".join(part for part in (first, section("NOT exported", refused)) if part)
    artifact = {
        "status": "error" if exports.refused else "ok",
        **exports.model_dump(mode="json"),
        "artifact_map": {export.path: export.host_path for export in exports.exports},
        **origin(opened),
    }
    return _joined(opened, whole), artifact


def _describe(dataset: Dataset) -> str:
    facts = [size_of(dataset.size)] if dataset.size is not None else []
    if dataset.rows is not None:
        facts.append(f"{dataset.rows} row{'s' if dataset.rows != 1 else ''}")
    if dataset.modified is not None:
        facts.append(f"modified {dataset.modified:%Y-%m-%d %H:%M:%S} UTC")
    if dataset.status != "LOADED":
        facts.append(dataset.status + (f" ({dataset.reason})" if dataset.reason else ""))
    columns = list(map(str, dataset.columns or []))
    shown = ", ".join(columns[:_MAX_COLUMNS]) + (", ..." if len(columns) > _MAX_COLUMNS else "")
    return f"{dataset.path} ({', '.join(facts)})" + (f"; columns: {shown}" if shown else "")


def _joined(opened: Opened[Any], text: str) -> str:
    return "\n".join(part for part in (note(opened.notice), text) if part)
