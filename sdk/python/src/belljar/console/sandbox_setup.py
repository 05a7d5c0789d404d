"""`sandbox-setup`: gives sandboxes their Python packages, lays out a project, and says what there is now.

It is `belljar setup`, whose options it takes, and two things more. The current directory gets files to
begin with (`_project.py`), unless `--no-files` is given; what is there stays as it is. And a local server
that was started before sees the packages only after it was started again, so it is stopped. The next
program that needs it starts it, and sessions survive that.
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
# As shells say it: ended by Ctrl-C.
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
    # Its progress is for whoever sits here, and so are its questions and its errors.
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
        print("The local server was stopped, for the next one to see them. Its sessions stay.")
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
    """What `belljar setup` wrote down of the last setup that was finished."""

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
