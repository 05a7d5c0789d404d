"""Users for tests, each with a home directory and the local servers that their programs start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from servers import PATIENCE, binary, python_path, remove_groups

from belljar import BelljarError, Client, local

# Variables of the caller's environment that must not affect these users.
FOREIGN = (
    "AGENT_MODEL", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "BELLJAR_API_KEY", "BELLJAR_URL",
    "SANDBOX_API_URL", "SESSION_STORAGE", "DATASET_ACCESS", "DATASETS_HOST_RO", "SESSIONS_ROOT", "BLOBSTORE_DIR",
    "ARTIFACTS_DB", "IDLE_HIBERNATE_SEC", "SANDBOX_IMAGE", "TMPFS_SIZE_MB",
)  # fmt: skip


class User:
    """A user with a home directory, a current directory (`project`) and an environment (`env`)."""

    def __init__(self) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="u-"))
        self.project = self.home / "project"
        self.project.mkdir()
        self.env = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        for name, place in (("XDG_DATA_HOME", "data"), ("XDG_RUNTIME_DIR", "run")):
            (self.home / place).mkdir(mode=0o700)
            self.env[name] = str(self.home / place)
        self.env |= {
            "HOME": str(self.home),
            "PYTHONPATH": python_path(),
            "BELLJAR_BINARY": binary(),
            # The packages of sandboxes are those of the user who runs the tests.
            "BELLJAR_HOME": str(local.manifest_path().parent.parent),
            "BELLJAR_PRELOAD": "json",
            "BELLJAR_POOL": "0",
            "BELLJAR_ALONE": "5",
        }

    def becomes_us(self, patch: pytest.MonkeyPatch) -> None:
        """Makes the test process a program of this user."""
        for name in FOREIGN:
            patch.delenv(name, raising=False)
        for name, value in self.env.items():
            if name not in ("PYTHONPATH", "HOME"):
                patch.setenv(name, value)
        patch.chdir(self.project)

    def run(
        self, *command: str | Path, timeout: float = 2 * PATIENCE, stdin: str = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(part) for part in command],
            cwd=self.project, env={**self.env, **(env or {})}, input=stdin, capture_output=True, text=True,
            timeout=timeout,
        )  # fmt: skip

    def python(self, *arguments: str | Path, env: Mapping[str, str] | None = None) -> str:
        """The output of a Python program, which must succeed."""
        done = self.run(sys.executable, *arguments, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def servers(self) -> list[Path]:
        """The sockets of the local servers that were started."""
        return sorted((self.home / "run").glob("belljar-local*/server.sock"))

    def leave(self) -> None:
        """Ends sessions and servers, and removes their files."""
        for socket in self.servers():
            pid = local._pid_of(socket)
            if pid is not None:
                with suppress(BelljarError), Client(f"unix:{socket}", patience=0) as client:
                    for session in client.sessions(limit=None):
                        if session.info.is_alive:
                            session.stop()
                local._end(pid)
        for runtime in (self.home / "run").glob("belljar-local*"):
            remove_groups(f"belljar-{local._digest(os.fsencode(runtime))}")
        shutil.rmtree(self.home, ignore_errors=True)
