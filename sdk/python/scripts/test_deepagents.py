"""Runs the tests of the deepagents backend over several versions of deepagents, each in its own environment.

    python scripts/test_deepagents.py [--in DIRECTORY] [--standard] [VERSION ...]     0.6.12 and the newest unless told

`--standard` is for those of langchain-tests alone.

With 0.6.12 all of langchain-tests' 86 pass. With the newest those fail that deepagents itself fails,
by name: see tests/deepagents/test_deepagents_standard.py. BELLJAR_BINARY names the server.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NEWEST = "newest"
NEEDS = ["langchain-tests", "pytest", "pytest-asyncio", "httpx", "pydantic"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("versions", nargs="*", default=["0.6.12", NEWEST])
    parser.add_argument("--in", dest="directory", type=Path, default=Path(tempfile.gettempdir(), "belljar-deepagents"))
    parser.add_argument("--standard", action="store_true")
    asked = parser.parse_args()
    tests = "tests/deepagents/test_deepagents_standard.py" if asked.standard else "tests/deepagents"
    failed = False
    for version in asked.versions:
        python = prepare(asked.directory / version, version)
        done = subprocess.run(
            [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfE", tests],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        failed = failed or done.returncode != 0
        print(f"deepagents {version}: {summary(done.stdout)}")
        if done.returncode != 0:
            print(done.stdout)
    return int(failed)


def prepare(directory: Path, version: str) -> Path:
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
    wanted = "deepagents" if version == NEWEST else f"deepagents=={version}"
    install = [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--upgrade",
        wanted,
        *NEEDS,
    ]
    subprocess.run(install, check=True)
    return python


def summary(output: str) -> str:
    found = re.findall(r"^=*\s*(\d+ (?:passed|failed|error).* in [\d.]+s)", output, re.MULTILINE)
    return found[-1] if found else "it did not come to an end"


if __name__ == "__main__":
    sys.exit(main())
