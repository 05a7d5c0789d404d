"""The files that `sandbox-setup` writes into a project: a container image, settings, and an example."""

from __future__ import annotations

from pathlib import Path

_TEMPLATES = Path(__file__).parent.parent / "project"
#: In the order in which they are listed.
FILES = ("Dockerfile", "compose.yaml", "example.env", "docker.env", "sandbox/requirements.txt", "example.py")


def lay_out(directory: Path) -> tuple[list[str], list[str]]:
    """Writes the missing files; returns which were written, and which existed and were left as they are."""
    written, kept = [], []
    for name in FILES:
        target = directory / name
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with open(target, "x", encoding="utf-8") as file:
                file.write((_TEMPLATES / name).read_text("utf-8"))
            written.append(name)
        except FileExistsError:
            kept.append(name)
    return written, kept
