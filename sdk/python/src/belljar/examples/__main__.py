"""Runs the examples of the package, or copies them as templates.

    python -m belljar.examples                   lists them
    python -m belljar.examples simple_sandbox    runs one
    python -m belljar.examples --copy DIRECTORY  copies all of them
"""

from __future__ import annotations

import argparse
import ast
import runpy
import shutil
import sys
from pathlib import Path

_HERE = Path(__file__).parent
# A module that the examples share.
_SHARED = "agents"


def examples() -> dict[str, Path]:
    """The examples by name."""
    found = {path.stem: path for path in sorted(_HERE.glob("*.py"))}
    return {name: path for name, path in found.items() if name != _SHARED and not name.startswith("_")}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m belljar.examples", description="Runs the examples of Belljar, or copies them as templates."
    )
    parser.add_argument("name", nargs="?", choices=examples(), metavar="NAME", help="the example to run")
    parser.add_argument("--copy", type=Path, metavar="DIRECTORY", help="copy all of them there")
    asked = parser.parse_args()
    if asked.copy is not None:
        return _copy(asked.copy)
    if asked.name is None:
        return _list()
    # In a checkout these are links to the real files, which have their data beside them.
    path = examples()[asked.name].resolve()
    # They import the shared module from their own directory.
    sys.path.insert(0, str(path.parent))
    sys.argv = [str(path)]
    try:
        runpy.run_path(str(path), run_name="__main__")
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in ("langchain", "langchain_core", "langgraph", "deepagents"):
            raise
        extra = "deepagents" if str(error.name).startswith("deepagents") else "langgraph"
        print(f"{asked.name} needs {error.name}: pip install 'belljar[{extra}]'", file=sys.stderr)
        return 1
    return 0


def _list() -> int:
    for name, path in examples().items():
        description = ast.get_docstring(ast.parse(path.read_text())) or ""
        print(f"{name:<18}{description.splitlines()[0] if description else ''}")
    print("\npython -m belljar.examples NAME runs one; --copy DIRECTORY copies all of them.")
    return 0


def _copy(directory: Path) -> int:
    """Copies the examples. Existing files are left as they are."""
    sources = [*examples().values(), _HERE / f"{_SHARED}.py", *sorted((_HERE / "data").iterdir())]
    for source in sources:
        target = directory / source.relative_to(_HERE)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(target, "xb") as file, open(source, "rb") as original:
                shutil.copyfileobj(original, file)
            print(f"wrote {target}")
        except FileExistsError:
            print(f"kept {target}")
        except OSError as error:
            print(f"failed to write `{target}`: {error.strerror}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
