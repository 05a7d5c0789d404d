"""What `sandbox-setup` puts into a project: an image for those who want containers, settings, and an example."""

from __future__ import annotations

from pathlib import Path

_TEMPLATES = Path(__file__).parent.parent / "project"
#: In the order in which they are told of.
FILES = ("Dockerfile", "compose.yaml", "example.env", "docker.env", "sandbox/requirements.txt", "example.py")


def lay_out(directory: Path) -> tuple[list[str], list[str]]:
    """Writes what is missing, and returns what was written and what was there; that stays as it is."""
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
