"""The local server: started once, shared, found again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from servers import python_path
from users import User

import belljar
from belljar import Client, LocalServerError, local


@pytest.fixture
def home(user: User, monkeypatch: pytest.MonkeyPatch) -> Path:
    """We are this user."""
    user.becomes_us(monkeypatch)
    monkeypatch.setenv("OPENAI_API_KEY", "secret-of-mine")
    return user.home


def program(code: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": python_path()}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_programs_that_begin_at_once_share_one_server(home: Path) -> None:
    code = """
import belljar
print(belljar.run("1 + 1").text, belljar.local._pid_of(belljar.local.Place().socket))
"""
    programs = [program(code) for _ in range(3)]
    said = []
    for running in programs:
        out, err = running.communicate(timeout=60)
        assert running.returncode == 0, err
        said.append(out.split())
    assert [words[0] for words in said] == ["2"] * 3
    assert len({words[1] for words in said}) == 1, "one server"
    pid = int(said[0][1])

    # It lives on without them, and is found again.
    assert local.is_running()
    assert belljar.run("2 + 2").text == "4"
    assert local._pid_of(local.Place().socket) == pid

    # Nobody else comes in, and nothing that is not the server's business got there.
    place = local.Place()
    assert place.runtime == home / "run" / "belljar-local"
    assert [path.stat().st_mode & 0o077 for path in (place.data, place.runtime, place.log, place.socket)] == [0] * 4
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"secret-of-mine" not in environment and b"BELLJAR_BINARY" not in environment
    assert "listens on unix:" in local.log_path().read_text()

    # Killed, it is started again by whoever needs it, and its sessions are there.
    with Client() as client:
        assert repr(client) == "Client('local')" and client.url == f"unix:{place.socket}"
        session = client.session()
        session.run_code("x = 41")
        os.kill(pid, signal.SIGKILL)
        assert session.run_code("x + 1").text == "42"
        assert local._pid_of(place.socket) not in (None, pid)
        session.stop()

    assert local.stop() and not local.is_running() and not local.stop()


def test_a_server_that_cannot_start_is_quoted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_MEMORY", "much")
    began = time.monotonic()
    with pytest.raises(LocalServerError, match="BELLJAR_MEMORY") as caught:
        belljar.run("1")
    assert "It said:" in str(caught.value) and "server.log" in str(caught.value)
    assert time.monotonic() - began < 10


def test_without_a_program_there_is_no_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_BINARY", str(home / "none"))
    with pytest.raises(LocalServerError, match="which is no program"):
        belljar.run("1")
    monkeypatch.delenv("BELLJAR_BINARY")
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(home))
    with pytest.raises(LocalServerError, match="BELLJAR_URL"):
        belljar.run("1")


def test_the_program_beside_this_python_is_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BELLJAR_BINARY")
    monkeypatch.setattr("sysconfig.get_path", lambda *_: str(home))
    (home / "belljar").touch(0o755)
    assert local.find_binary() == str(home / "belljar")


def test_flags_that_the_server_does_not_know_are_not_passed(home: Path) -> None:
    for helped, knows in [("--idle-exit SECONDS", True), ("--other", False)]:
        script = home / "belljar"
        script.write_text(f"#!/bin/sh\necho '{helped}'\n")
        script.chmod(0o755)
        assert local._knows_idle_exit(str(script), {}) is knows


def test_long_paths_and_foreign_directories(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", f"{home}/" + "x" * 120)
    place = local.Place()
    assert len(str(place.socket)) < 108 and place.runtime.name.startswith("belljar-")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
    (home / "elsewhere").mkdir()
    (home / "run" / "belljar-local").symlink_to(home / "elsewhere")
    with pytest.raises(LocalServerError, match="not a directory of yours"):
        local.ensure()
    (home / "run" / "belljar-local").unlink()


def test_only_what_the_server_needs_is_passed_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_DATASET_SOURCES", '{"a/": {"url": "http://x/{name}", "headers": {"k": "${MY_TOKEN}"}}}')
    monkeypatch.setenv("MY_TOKEN", "t")
    monkeypatch.setenv("BELLJAR_API_KEY", "k")
    monkeypatch.setenv("BELLJAR_MEMORY", "1G")
    monkeypatch.setenv("DATASETS_HOST_RO", "data")
    environment = local._environment(local.Place())
    assert environment["MY_TOKEN"] == "t" and environment["BELLJAR_MEMORY"] == "1G"
    assert environment["DATASETS_HOST_RO"] == os.path.abspath("data")
    assert not {"OPENAI_API_KEY", "BELLJAR_API_KEY", "BELLJAR_BINARY"} & set(environment)
