"""`sandbox-setup`: installs Python packages for sandboxes, and writes the files of a new project.

It runs `belljar setup`, with the same options, and does two more things. It writes files into the current directory
(`_project.py`), unless `--no-files` is given; existing files are left as they are. And it stops the local server, which
sees new packages only after a restart: the next program starts it again, and sessions are kept.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from belljar import local
from belljar.console import _project
from belljar.errors import BelljarError

_NO_FILES = "--no-files"
_CONTAINERS = """
Sandboxes need no image. To have them as containers instead:
  docker build -t sandbox:latest -f Dockerfile .
  cp docker.env .env"""
# The exit code of shells for Ctrl-C.
_INTERRUPTED = 130


def main() -> int:
    try:
        return _setup(sys.argv[1:])
    except BelljarError as error:
        print(f"sandbox-setup: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nsandbox-setup: interrupted; run it again to go on", file=sys.stderr)
        return _INTERRUPTED


def _setup(arguments: list[str]) -> int:
    wants_files = _NO_FILES not in arguments
    arguments = [argument for argument in arguments if argument != _NO_FILES]
    before = _manifest()
    # Its progress, its questions and its errors go to the terminal.
    status = subprocess.run([local.find_binary(), "setup", *arguments]).returncode
    if status == 0 and {"-h", "--help"} & set(arguments):
        print(f"\nOf sandbox-setup:\n      {_NO_FILES}  Write no files but .env into the current directory")
        return 0
    if status != 0:
        return status if status >= 0 else 128 - status
    sys.stdout.flush()
    now = _manifest()
    if now is not None:
        print(f"\nSandboxes have Python {now.version} with {', '.join(now.packages)}.")
    if now != before and local.stop():
        print("The local server was stopped; the next one has these packages. Its sessions are kept.")
    if wants_files:
        _lay_out()
    print("\nAn agent to talk to:\n  langgraph-sandbox")
    return 0


def _lay_out() -> None:
    try:
        written, kept = _project.lay_out(Path())
    except OSError as error:
        raise BelljarError(f"failed to write `{error.filename}`: {error.strerror}") from error
    if written:
        print(f"\nWrote {', '.join(written)}.")
    if kept:
        print(f"Left as they were: {', '.join(kept)}.")
    print(_CONTAINERS)
    print("\nAn example:\n  python example.py")


class _Manifest(NamedTuple):
    """The record of the last setup that `belljar setup` completed."""

    version: str
    packages: list[str]


def _manifest() -> _Manifest | None:
    try:
        found = json.loads(local.manifest_path().read_text())
        return _Manifest(str(found["python_version"]), [str(name) for name in found["packages"]])
    except (OSError, ValueError, KeyError, TypeError):
        return None


if __name__ == "__main__":
    sys.exit(main())
