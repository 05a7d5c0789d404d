"""Runs the tests of the deepagents backend with several versions of deepagents, each in its own environment.

    python scripts/test_deepagents.py [--in DIRECTORY] [--standard] [VERSION ...]     default: 0.6.12 and the newest

`--standard` runs only the tests of langchain-tests.

With 0.6.12 all 86 tests of langchain-tests pass. Newer versions of deepagents fail some of them:
tests/deepagents/test_deepagents_standard.py lists these with reasons. BELLJAR_BINARY is the server to test.
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
    # A fixed version is installed once; the newest may have changed.
    installed = directory / "installed.txt"
    if version != NEWEST and installed.exists() and installed.read_text().split() == [wanted, *NEEDS]:
        return python
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
    installed.write_text("\n".join([wanted, *NEEDS]))
    return python


def summary(output: str) -> str:
    found = re.findall(r"^=*\s*(\d+ (?:passed|failed|error).* in [\d.]+s)", output, re.MULTILINE)
    return found[-1] if found else "it did not finish"


if __name__ == "__main__":
    sys.exit(main())
