"""`sandbox-setup`: gives sandboxes their Python packages, and says what there is now.

It is `belljar setup`, whose options it takes, and one thing more: a local server that was started
before sees the packages only after it was started again, so it is stopped. Whoever needs it next
starts it, and sessions survive that.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import NamedTuple

from belljar import local
from belljar.errors import BelljarError

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
    before = _manifest()
    # Its progress is for whoever sits here, and so are its questions and its errors.
    status = subprocess.run([local.find_binary(), "setup", *arguments]).returncode
    if status != 0 or {"-h", "--help"} & set(arguments):
        return status if status >= 0 else 128 - status
    sys.stdout.flush()
    now = _manifest()
    if now is not None:
        print(f"\nSandboxes have Python {now.version} with {', '.join(now.packages)}.")
    if now != before and local.stop():
        print("The local server was stopped, for the next one to see them. Its sessions stay.")
    print("\nAn agent to talk to:\n  langgraph-sandbox")
    return 0


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
