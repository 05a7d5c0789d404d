"""Copies artifacts of runs on the local server to the program's own directory.

They are copied, not linked: the server shares one file among all artifacts with the same content, and editing the copy
must not change those.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from belljar.models import Artifact, Result


def copied(result: Result, outputs: Path) -> Result:
    """The result with its artifacts in `outputs/<run_id>/`. One that cannot be copied keeps the server's path."""
    moved = {}
    for artifact in result.artifacts:
        target = _target(artifact, outputs / result.exec_id)
        if target is not None and _copy(str(artifact.host_path), target):
            moved[artifact.path] = str(target)
    if not moved:
        return result
    artifacts = [
        artifact.model_copy(update={"host_path": moved[artifact.path]}) if artifact.path in moved else artifact
        for artifact in result.artifacts
    ]
    return result.model_copy(update={"artifacts": artifacts, "artifact_map": {**result.artifact_map, **moved}})


def _target(artifact: Artifact, directory: Path) -> Path | None:
    """The path of the copy; None if there is nothing to copy."""
    if artifact.host_path is None:
        return None
    parts = Path(artifact.host_path).parts
    if directory.name in parts:
        # The path below the run's directory, with the names that the server has made safe.
        below = parts[len(parts) - parts[::-1].index(directory.name) :]
    else:
        below = (os.path.basename(artifact.name),)
    target = directory.joinpath(*below)
    is_below = ".." not in below and target != directory
    return target if is_below and str(target) != artifact.host_path else None


def _copy(source: str, target: Path) -> bool:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    except OSError:
        return False
    return True
