"""Settings: how files of them are read, and what becomes of those that differ from a running server's."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from servers import REPOSITORY, binary, remove_groups
from users import User

import belljar
from belljar import Client, InvalidRequest, _settings, local

CASES = json.loads((REPOSITORY / "tests" / "env-files.json").read_text())["cases"]


@pytest.fixture
def project(user: User, monkeypatch: pytest.MonkeyPatch) -> Path:
    """We are this user, in a directory of theirs."""
    user.becomes_us(monkeypatch)
    return user.project


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_files_are_read_as_the_program_reads_them(case: dict[str, Any]) -> None:
    if "error" in case:
        with pytest.raises(InvalidRequest) as caught:
            _settings.parse(case["text"])
        assert caught.value.message == case["error"]
    else:
        assert _settings.parse(case["text"]) == case["values"]


def test_the_environment_wins_also_with_nothing(project: Path, user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".env").write_text("BELLJAR_TTL=60\nBELLJAR_PIDS=32\nOTHERS='x'\n")
    monkeypatch.setenv("BELLJAR_PIDS", "")
    read = _settings.read()
    assert (read["BELLJAR_TTL"], read.get("BELLJAR_PIDS"), read["OTHERS"]) == ("60", None, "x")
    # And so it is for the program.
    done = user.run(binary(), "run", "-c", "1", env={"BELLJAR_PIDS": ""})
    assert done.returncode == 0, done.stderr
    (project / ".env").write_text("BELLJAR_PIDS=many\n")
    assert user.run(binary(), "run", "-c", "1", env={"BELLJAR_PIDS": ""}).returncode == 0
    assert "BELLJAR_PIDS=many" in user.run(binary(), "run", "-c", "1").stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("BELLJAR_MEMROY=1G", "BELLJAR_MEMROY in .env is not a setting; the closest is BELLJAR_MEMORY"),
        ("A='x\n", "the quote that line 1 opens is not closed"),
        ("\nnonsense", "line 2 is neither a comment nor NAME=value"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_alike(project: Path, user: User, text: str, expected: str) -> None:
    (project / ".env").write_text(text)
    for attempt in (Client, belljar.SessionManager, lambda: belljar.run("1"), belljar.Config.from_env):
        with pytest.raises(InvalidRequest) as caught:
            attempt()
        assert expected in str(caught.value)
    done = user.run(binary(), "session", "list")
    assert done.returncode == 125
    assert expected in done.stderr


def test_a_virtual_environment_is_no_file_of_settings(project: Path, user: User) -> None:
    (project / ".env").mkdir()
    assert _settings.read()["BELLJAR_BINARY"] == binary()
    assert user.run(binary(), "run", "-c", "1").returncode == 0
    (project / ".env").rmdir()
    (project / ".env").write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequest, match="not UTF-8 text"):
        Client()


def test_the_file_is_read_for_the_local_server(project: Path) -> None:
    (project / ".env").write_text("export BELLJAR_MEMORY='96M' # small\nBELLJAR_PIDS=32\nTMPFS_SIZE_MB=8\n")
    with Client() as client, client.session() as session:
        assert (session.info.limits.memory, session.info.limits.pids) == (96 << 20, 32)
        assert session.info.limits.tmpfs == 8 << 20


def test_settings_that_the_running_server_does_not_have(
    project: Path, user: User, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Another program has started it, with settings of its own.
    user.python("-c", "import belljar; belljar.run('1')", env={"BELLJAR_MEMORY": "128M", "BELLJAR_THREADS": "1"})
    [socket] = user.servers()
    # None here: what it has is good enough.
    with caplog.at_level(logging.WARNING, "belljar"), Client() as client, client.session() as session:
        assert session.info.limits.memory == 128 << 20
        assert caplog.messages == []

    (project / ".env").write_text(
        "BELLJAR_MEMORY=96M\nBELLJAR_CPUS=0.5\nBELLJAR_PIDS=40\nTMPFS_SIZE_MB=9\nSESSION_STORAGE=bind\n"
        "DATASET_ACCESS=API_TMPFS\nBELLJAR_TTL=77\nBELLJAR_IDLE_TIMEOUT=66\nSANDBOX_IMAGE=sandbox:latest\n"
        # What is the default there, or is set there, needs no word.
        "BELLJAR_DRAIN=10\nBELLJAR_POOL=0\n"
        "BELLJAR_THREADS=2\nBELLJAR_NETWORK=open\nBELLJAR_NETWORK_SECRETS='{\"A\": 1}'\n"
    )
    monkeypatch.delenv("BELLJAR_POOL")
    with Client() as client:
        with client.session("k", stop_on_exit=True) as session:
            info = session.info
            assert (info.limits.memory, info.limits.cpus, info.limits.pids) == (96 << 20, 0.5, 40)
            assert (info.limits.tmpfs, info.storage, info.datasets) == (9 << 20, "BIND", "API")
            assert (info.ttl, info.idle_timeout, info.image, info.network) == (77, 66, "host", "open")
        # What is asked for wins, part by part.
        with client.session(limits={"memory": "100M"}, storage="TMPFS", ttl=11) as session:
            info = session.info
            assert (info.limits.memory, info.limits.pids, info.storage, info.ttl) == (100 << 20, 40, "TMPFS", 11)
        assert client.run("print(len(b'x' * (110 << 20)))").status == "oom"
    assert belljar.run("print(len(b'x' * (110 << 20)))").status == "oom"
    # The rest is said, once, and what to do.
    [warning] = caplog.messages
    assert "BELLJAR_THREADS is 1 there and 2 here" in warning
    assert "another BELLJAR_NETWORK_SECRETS" in warning
    assert "python -m belljar.local stop" in warning
    assert not any(name in warning for name in ("MEMORY", "DRAIN", "POOL", "IMAGE", "STORAGE", "BELLJAR_NETWORK is"))
    assert user.servers() == [socket]

    # Done as it says, all of them count.
    (project / ".env").write_text("BELLJAR_MEMORY=96M\nBELLJAR_THREADS=2\nBELLJAR_POOL=0\n")
    assert "process " in user.python("-m", "belljar.local", "status")
    assert user.python("-m", "belljar.local", "stop") == "Stopped. Its sessions are kept.\n"
    caplog.clear()
    with Client() as client, client.session() as session:
        assert session.info.limits.memory == 96 << 20
    pid = local._pid_of(socket)
    assert b"BELLJAR_THREADS=2" in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert caplog.messages == []


def test_a_session_that_lives_keeps_what_it_began_with(project: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Client() as client, client.session("k", stop_on_exit=True) as session:
        (project / ".env").write_text("BELLJAR_PIDS=40\n")
        for _ in range(2):
            found = client.session("k")
            assert found.id == session.id
            assert found.info.limits.pids == session.info.limits.pids != 40
        manager = belljar.SessionManager()
        assert manager.exec("k", "1 + 1").text == "2"
        [warning] = caplog.messages
        assert "pids" in warning
        assert "until it is stopped" in warning
        # An explicit argument that the server cannot follow raises an error.
        with pytest.raises(belljar.Conflict):
            client.session("k", limits={"pids": 41})


def test_a_setting_that_is_no_number_is_said(project: Path, user: User) -> None:
    user.python("-c", "import belljar; belljar.run('1')")
    (project / ".env").write_text("BELLJAR_CPUS=all\n")
    with pytest.raises(InvalidRequest, match="BELLJAR_CPUS=all"):
        belljar.run("1")


def test_the_command_line_and_python_share_the_local_server(project: Path, user: User) -> None:
    belljar_command = user.env["BELLJAR_BINARY"]
    alone = user.run(belljar_command, "session", "list", env={"BELLJAR_URL": "local"})
    assert alone.returncode == 125
    assert f"unix:{local.LocalServer().socket}" in alone.stderr
    with Client() as client, client.session("from-python") as session:
        session.run_code("x = 41")
        listed = user.run(belljar_command, "session", "list")
        assert listed.returncode == 0
        assert session.id in listed.stdout
        assert "from-python" in listed.stdout
        assert user.run(belljar_command, "session", "exec", "from-python", "-c", "x + 1").stdout == "42\n"
        # And the other way round.
        made = user.run(belljar_command, "session", "create", "--key", "from-cli").stdout.strip()
        assert client.session("from-cli").info.id == made
        # Who names a server has that one.
        assert "127.0.0.1:9" in user.run(belljar_command, "session", "list", "--url", "http://127.0.0.1:9").stderr
        (project / ".env").write_text("BELLJAR_URL=http://127.0.0.1:9 # nobody\n")
        assert "127.0.0.1:9" in user.run(belljar_command, "session", "list").stderr
        with pytest.raises(belljar.ServerUnavailable, match=r"127\.0\.0\.1:9"):
            Client(patience=0).sessions()


@pytest.mark.parametrize("runtime", ["", "x" * 120])
def test_the_command_line_finds_it_wherever_it_is(project: Path, user: User, runtime: str) -> None:
    """Without a runtime directory, and with one whose name is too long for a socket."""
    env = {"XDG_RUNTIME_DIR": f"{user.home}/{runtime}" if runtime else "", "TMPDIR": str(user.home / "run")}
    code = "import belljar; c = belljar.Client(); print(c.session('k').id); print(belljar.local.LocalServer().socket)"
    session, socket = user.python("-c", code, env=env).split()
    try:
        reply = user.run(user.env["BELLJAR_BINARY"], "session", "list", env=env)
        assert session in reply.stdout, reply.stderr
    finally:
        with Client(f"unix:{socket}") as client:
            client.get_session(session).stop()
        pid = local._pid_of(Path(socket))
        assert pid is not None
        assert local._end(pid)
        remove_groups(f"belljar-{local._digest(os.fsencode(Path(socket).parent))}")


def test_artifacts_of_the_local_server_can_be_opened(project: Path, user: User) -> None:
    with Client() as client:
        with client.session() as session:
            write = "open('/session/artifacts/sub/plot.png', 'w').write({!r}); None"
            result = session.run_code("import os; os.mkdir('/session/artifacts/sub'); " + write.format("one"))
            path = Path(result.artifact_map["/session/artifacts/sub/plot.png"])
            assert path.parts[-3:] == ("artifacts", "sub", "plot.png")
            assert path.read_text() == "one"
            assert result.artifacts[0].host_path == str(path)
            # Lists tell it too.
            [listed] = session.artifacts.list()
            assert listed.host_path == str(path)
            assert client.artifacts.get(str(listed.id)).host_path == str(path)
            # The name is that of the newest; the older one is still what it was.
            newer = session.run_code(write.format("two"))
            assert path.read_text() == "two"
            assert newer.artifacts[0].host_path == str(path)
            older = client.artifacts.get(str(listed.id))
            assert Path(str(older.host_path)).read_text() == "one"
        # It outlives the session, and goes with the artifact.
        assert path.read_text() == "two"
        for artifact in client.artifacts.list():
            client.artifacts.delete(artifact)
        assert not path.exists()
        assert not path.parents[2].exists()
        assert path.parents[3].is_dir()
