"""Generates every `_sync` package from the `_aio` package beside it: the same code without `await`.

    python scripts/generate_sync.py            writes the files
    python scripts/generate_sync.py --check    fails if they are not up to date
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "belljar"
# Written by hand in both packages.
BY_HAND = {Path("_aio/__init__.py"), Path("_aio/_io.py")}

# Methods that the synchronous and the asynchronous flavour share, with an `a` before the name of the latter.
_METHODS = (
    "close|download|download_files|exec|execute|fetched|iter_raw|open|read|remove|run|shortened|start|stop|stop_thread|"
    "turn|upload|upload_files"
)
RULES = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b_aio\b", "_sync"),
    (r"\b(?:Async|StopAsync)(?=Iteration\b)", "Stop"),
    (r"\bAsync([A-Z]\w*)", r"\1"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (rf"\b(_?)a({_METHODS})\b", r"\1\2"),
    (r"\b(_?)async_client\b", r"\1client"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bAwaitable, ", ""),
    (r"\bAn asynchronous\b", "A"),
]


def generated(source: Path) -> str:
    text = source.read_text()
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return f"# Generated from ../_aio/{source.name} by scripts/generate_sync.py; change that file.\n{text}"


def main() -> int:
    stale = []
    for source in sorted(PACKAGE.rglob("_aio/*.py")):
        if source.relative_to(PACKAGE) in BY_HAND:
            continue
        target = source.parent.parent / "_sync" / source.name
        text = generated(source)
        if target.exists() and target.read_text() == text:
            continue
        stale.append(str(target))
        if "--check" not in sys.argv:
            target.parent.mkdir(exist_ok=True)
            target.write_text(text)
    if stale and "--check" in sys.argv:
        print("not up to date; run `python scripts/generate_sync.py`:", *stale, sep="\n  ")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
