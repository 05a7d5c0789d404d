"""The server in a container, as docs/how-to/from-python-agent-sandbox.md says: sandboxes of its own, and limits."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import REPOSITORY, binary, remove_groups

from belljar import Client, Unauthorized

IMAGE = "belljar/test-base:1"
PAGE = REPOSITORY / "docs" / "how-to" / "from-python-agent-sandbox.md"
# `make test` prepares the engine meanwhile, and says when that has come to its end.
PREPARED = REPOSITORY / "target" / "docker" / "done"
PREPARED_PATIENCE = 600.0
PATIENCE = 60.0


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True, timeout=PATIENCE).stdout


def has_image() -> bool:
    deadline = time.monotonic() + (PREPARED_PATIENCE if os.environ.get("WAIT_FOR_ENGINE") else 0)
    while not PREPARED.exists() and time.monotonic() < deadline:
        time.sleep(0.5)
    try:
        return bool(docker("image", "ls", "-q", IMAGE).strip())
    except (OSError, subprocess.SubprocessError):
        return False


def flags() -> list[str]:
    """What the page says that the container needs."""
    found = re.search(r"docker run -d (.*?)--name", PAGE.read_text().replace("\\\n", " "), re.DOTALL)
    assert found is not None
    return found[1].split()


def address(name: str) -> str:
    """Waits until the server in the container says where it listens."""
    deadline = time.monotonic() + PATIENCE
    while True:
        is_running = docker("inspect", "--format", "{{.State.Running}}", name).strip() == "true"
        shown = subprocess.run(["docker", "logs", name], check=True, capture_output=True, text=True, timeout=PATIENCE)
        found = re.search(r" listens on (http://\S+)", shown.stderr)
        if found is not None:
            return found[1]
        assert is_running, shown.stderr
        assert time.monotonic() < deadline, shown.stderr
        time.sleep(0.1)


@pytest.fixture
def state() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


def test_as_the_page_says(state: Path) -> None:
    if os.getuid() != 0 or not has_image():
        pytest.skip("no container engine with a base image; scripts/prepare-docker makes both")
    mounts = ["-v", f"{binary()}:/usr/local/bin/belljar:ro", "-v", f"{state}:/var/lib/belljar/state"]
    name = f"belljar-test-{uuid.uuid4().hex[:12]}"
    own = ["-e", "BELLJAR_PRELOAD=json", "-e", f"BELLJAR_CGROUP_PARENT={name}"]
    made = docker("run", "--rm", "--network", "none", *mounts, IMAGE, "belljar", "key", "create", "--name", "agent")
    key = made.strip().splitlines()[-1]
    # The engine of the tests has no network of its own: instead of a published port, the machine's.
    where = ["--network", "host"]
    try:
        docker(
            "run", "-d", *flags(), "--name", name, *where, *own, *mounts, IMAGE,
            "belljar", "serve", "--listen", "127.0.0.1:0", "--stop-sessions",
        )  # fmt: skip
        url = address(name)
        with (
            Client(url, api_key=key, patience=PATIENCE) as client,
            client.session(limits={"memory": "64M"}) as session,
        ):
            assert session.run_code("x = 6 * 7").ok
            look = "import os; print(x, os.getuid(), os.path.exists('/var/lib/belljar'))"
            assert session.run_code(look).stdout == "42 1000 False\n"
            full = session.run_code("x = bytearray(256 << 20)")
            assert full.status == "oom"
        with Client(url) as stranger, pytest.raises(Unauthorized):
            stranger.sessions()
    finally:
        # Its sandboxes end with it: it is their machine.
        subprocess.run(["docker", "rm", "-f", name], capture_output=True, timeout=PATIENCE)
        remove_groups(name)
