"""The examples run without changes, with a scripted model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from servers import Server

from belljar import Client

ROOT = Path(__file__).resolve().parents[4]


def run(server: Server, example: str, *arguments: str) -> str:
    keys = ("AGENT_MODEL", "OPENAI_API_KEY", "ANTHROPIC_API_KEY")
    env = {name: value for name, value in os.environ.items() if name not in keys}
    paths = [str(ROOT / "sdk" / "python" / "src"), os.environ.get("PYTHONPATH", "")]
    env |= {"BELLJAR_URL": server.url, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    before = alive(server)
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{example}.py", *arguments],
        env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert not alive(server) - before
    return done.stdout


def alive(server: Server) -> set[str]:
    """Sessions of the server, which other tests use too."""
    with Client(server.url) as client:
        return {session.id for session in client.sessions() if session.info.is_alive}


def test_bash_agent(server: Server) -> None:
    said = run(server, "bash_agent")
    assert " license" in said
    assert "no way out" in said


def test_deep_agent(server: Server) -> None:
    said = run(server, "deep_agent")
    assert "SyntaxError" in said
    assert "    ~ a new height: 9232\n" in said
    assert "highest: 9232" in said
    assert "collatz.py" in said.rpartition("Do you still have it?")[2]


def test_parallel_agents(server: Server) -> None:
    said = run(server, "parallel_agents", "4")
    assert said.count("agent ") >= 4
    assert "together: 3.14" in said
