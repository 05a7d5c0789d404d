"""Makes `_sync` of `_aio`: the same code without waiting for anything but the network.

    python scripts/generate_sync.py            writes the files
    python scripts/generate_sync.py --check    fails if they are not what they should be
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "belljar"
# Written by hand on both sides.
BY_HAND = {"__init__.py", "_io.py"}

RULES = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b_aio\b", "_sync"),
    (r"\b(?:Async|StopAsync)(?=Iteration\b)", "Stop"),
    (r"\bAsync([A-Z]\w*)", r"\1"),
    (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
    (r"\ba(close|read|iter_raw)\b", r"\1"),
    (r"\bAn asynchronous\b", "A"),
]


def generated(name: str) -> str:
    text = (PACKAGE / "_aio" / name).read_text()
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    return f"# Made of ../_aio/{name} by scripts/generate_sync.py; change that one.\n{text}"


def main() -> int:
    stale = []
    for source in sorted((PACKAGE / "_aio").glob("*.py")):
        if source.name in BY_HAND:
            continue
        target = PACKAGE / "_sync" / source.name
        text = generated(source.name)
        if target.exists() and target.read_text() == text:
            continue
        stale.append(str(target))
        if "--check" not in sys.argv:
            target.write_text(text)
    if stale and "--check" in sys.argv:
        print("not what `python scripts/generate_sync.py` makes:", *stale, sep="\n  ")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
