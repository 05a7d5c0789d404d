"""Compares a server with its OpenAPI document: `run.py BINARY SCHEMATHESIS [OPTION...]`.

Starts a server with keys in a temporary directory, lets Schemathesis send requests for everything that the document
describes, and stops the server.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

HERE = Path(__file__).parent
CONFIG = HERE / "schemathesis.toml"
HOOKS = HERE / "hooks.py"
START = 60.0
STOP = 60.0


def main() -> int:
    binary, schemathesis, *options = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="belljar-openapi-") as directory:
        place = Path(directory)
        env = settings(place)
        keys = {"BELLJAR_KEY": create_key(binary, env), "OPERATOR_KEY": create_key(binary, env, "--operator")}
        with server(binary, env, place) as url:
            session = create_session(url, keys["BELLJAR_KEY"])
            given = {**keys, "BELLJAR_SESSION": session, "SCHEMATHESIS_HOOKS": str(HOOKS)}
            command = [schemathesis, "--config-file", str(CONFIG), "run", f"{url}/openapi.json", *options]
            return subprocess.run(command, cwd=place, env={**os.environ, **given}, check=False).returncode


def settings(place: Path) -> dict[str, str]:
    """The settings of a server that writes only to this directory."""
    names = (
        "BELLJAR_RUN_DIR",
        "BELLJAR_STATE_DIR",
        "SESSIONS_ROOT",
        "BLOBSTORE_DIR",
        "BELLJAR_OUTPUTS_DIR",
        "BELLJAR_DATASET_CACHE",
        "BELLJAR_VOLUMES_DIR",
    )
    own = {name: str(place / name.lower()) for name in names}
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "BELLJAR_HOME") if name in os.environ}
    return {
        **inherited,
        **own,
        "BELLJAR_CGROUP_PARENT": f"belljar-openapi-{os.getpid()}",
        "BELLJAR_LISTEN": "127.0.0.1:0",
        "BELLJAR_POOL": "0",
        # If this program is killed, its sandboxes end soon.
        "BELLJAR_ALONE": "60",
        # No preloading, so that the first session is ready at once.
        "BELLJAR_PRELOAD": "json",
    }


def create_key(binary: str, env: dict[str, str], *options: str) -> str:
    command = [binary, "key", "create", "--name", "openapi", *options]
    return subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout.strip()


def create_session(url: str, key: str) -> str:
    """A session that lives as long as the server, with datasets and checkpoints."""
    ask = {"key": "openapi", "datasets": "API", "checkpoints": True, "ttl": 86400}
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{url}/v1/sessions", json.dumps(ask).encode(), headers)
    with urllib.request.urlopen(request, timeout=START) as answer:
        return str(json.load(answer)["id"])


@contextmanager
def server(binary: str, env: dict[str, str], place: Path) -> Iterator[str]:
    """A ready server; stopped with its sessions at the end."""
    process = subprocess.Popen(
        [binary, "serve", "--stop-sessions"], env=env, cwd=place, stderr=subprocess.PIPE, text=True
    )
    said: list[str] = []
    address: Queue[str | None] = Queue()
    listener = threading.Thread(target=listen, args=(process, said, address))
    listener.start()
    try:
        url = address.get(timeout=START)
        if url is None:
            raise SystemExit("the server did not start:\n" + "".join(said))
        yield url
    finally:
        process.terminate()
        try:
            process.wait(STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        listener.join()
        # Prints errors of the server: there should be none.
        print(*(line for line in said if " ERROR " in line or "panicked" in line), sep="", end="", file=sys.stderr)


def listen(process: subprocess.Popen[str], said: list[str], address: Queue[str | None]) -> None:
    """Collects the log of the server until it ends."""
    assert process.stderr is not None
    for line in process.stderr:
        said.append(line)
        if found := re.search(r"listens on (http://\S+)", line):
            address.put(found[1])
    address.put(None)


if __name__ == "__main__":
    sys.exit(main())
