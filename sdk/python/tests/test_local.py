"""The local server: started once, shared, found again."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from servers import python_path
from users import User

import belljar
from belljar import Client, LocalServerError, SessionManager, local


@pytest.fixture
def home(user: User, monkeypatch: pytest.MonkeyPatch) -> Path:
    """We are this user."""
    user.becomes_us(monkeypatch)
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "secret-of-mine")
    return user.home


def program(code: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": python_path()}
    return subprocess.Popen(
        [sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_programs_that_begin_at_once_share_one_server(home: Path) -> None:
    code = """
import belljar
print(belljar.run("1 + 1").text, belljar.local._pid_of(belljar.local.LocalServer().socket))
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
    assert local._pid_of(local.LocalServer().socket) == pid

    # Other users have no access, and the server got no other variables.
    place = local.LocalServer()
    assert place.runtime == home / "run" / "belljar-local"
    assert [path.stat().st_mode & 0o077 for path in (place.data, place.runtime, place.log, place.socket)] == [0] * 4
    environment = Path(f"/proc/{pid}/environ").read_bytes()
    assert b"secret-of-mine" not in environment
    assert b"BELLJAR_BINARY" not in environment
    assert "listens on unix:" in local.log_path().read_text()

    # If it is killed, the next program starts it again, and its sessions are there.
    with Client() as client:
        assert repr(client) == "Client('local')"
        assert client.url == f"unix:{place.socket}"
        session = client.session()
        session.run_code("x = 41")
        os.kill(pid, signal.SIGKILL)
        assert session.run_code("x + 1").text == "42"
        assert local._pid_of(place.socket) not in (None, pid)
        session.stop()

    assert local.stop()
    assert not local.is_running()
    assert not local.stop()


def test_a_server_that_cannot_start_is_quoted(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_MEMORY", "much")
    began = time.monotonic()
    with pytest.raises(LocalServerError, match="BELLJAR_MEMORY") as caught:
        belljar.run("1")
    assert "Its log:" in str(caught.value)
    assert "server.log" in str(caught.value)
    assert time.monotonic() - began < 10


def test_without_a_program_there_is_no_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_BINARY", str(home / "none"))
    with pytest.raises(LocalServerError, match="is not an executable file"):
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
    place = local.LocalServer()
    assert len(str(place.socket)) < 108
    assert place.runtime.name.startswith("belljar-")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
    (home / "elsewhere").mkdir()
    (home / "run" / "belljar-local").symlink_to(home / "elsewhere")
    with pytest.raises(LocalServerError, match="not a directory of yours"):
        local.ensure()
    (home / "run" / "belljar-local").unlink()


_NOBODY = 65534


class Stranger:
    """Another user who listens where our server would, answers everything, and writes down what is said."""

    def __init__(self, directory: Path, *, keeps_directory: bool) -> None:
        directory.mkdir()
        directory.chmod(0o777)
        self._directory = directory
        read, write = os.pipe()
        os.set_blocking(read, False)
        listens, reply = os.pipe()
        self._read = read
        self._pid = os.fork()
        if self._pid == 0:
            try:
                # However private the directories above are.
                os.chdir(directory)
                os.setgroups([])
                os.setgid(_NOBODY)
                os.setuid(_NOBODY)
                self._serve(reply, write)
            finally:
                os._exit(1)
        os.close(write)
        os.close(reply)
        assert os.read(listens, 1) == b"x"
        os.close(listens)
        if keeps_directory:
            os.chown(directory, _NOBODY, _NOBODY)
            directory.chmod(0o755)
        else:
            directory.chmod(0o700)

    @staticmethod
    def _serve(reply: int, write: int) -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("server.sock")
        listener.listen()
        os.write(reply, b"x")
        while True:
            connection = listener.accept()[0]
            connection.settimeout(5)
            with suppress(OSError):
                os.write(write, connection.recv(65536))
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            connection.close()

    def leave(self) -> bytes:
        """Ends, and returns what it heard."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        shutil.rmtree(self._directory)
        try:
            return os.read(self._read, 1 << 16)
        finally:
            os.close(self._read)


needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")


@needs_root
def test_the_socket_of_another_user_is_told_nothing(home: Path, user: User) -> None:
    place = local.LocalServer()
    stranger = Stranger(place.runtime, keeps_directory=True)
    try:
        manager = SessionManager(idle_hibernate_sec=77)
        assert manager.client._local is not None
        other = Stranger(manager.client._local.runtime, keeps_directory=True)
        try:
            for attempt in (
                lambda: belljar.run("1", env={"TOKEN": "my-secret"}),
                lambda: Client().session(env={"TOKEN": "my-secret"}),
                lambda: manager.exec("a", "my-secret"),
                lambda: manager.client.sessions(),
                lambda: asyncio.run(manager.async_client.sessions()),
                local.ensure,
                local.is_running,
                local.stop,
                lambda: local._pid_of(place.socket),
            ):
                with pytest.raises(LocalServerError, match="not a directory of yours"):
                    attempt()
            # The command says nothing there either, and goes to the default address.
            assert "server.sock" not in user.run(user.env["BELLJAR_BINARY"], "session", "list").stderr
            # Nor is anything made there.
            assert os.listdir(place.runtime) == ["server.sock"]
        finally:
            heard = other.leave()
    finally:
        heard += stranger.leave()
    assert heard == b""


@needs_root
def test_another_users_process_in_our_directory_is_told_nothing(home: Path, user: User) -> None:
    stranger = Stranger(local.LocalServer().runtime, keeps_directory=False)
    try:
        assert not local.is_running()
        assert not local.stop()
        with pytest.raises(LocalServerError):
            belljar.run("1", env={"TOKEN": "my-secret"})
        for env in ({}, {"BELLJAR_URL": "local"}):
            reply = user.run(user.env["BELLJAR_BINARY"], "session", "create", "--key", "my-secret", env=env)
            assert reply.returncode == 125
            assert "you may not use the socket" in reply.stderr, reply.stderr
    finally:
        heard = stranger.leave()
    assert heard == b""


@needs_root
def test_a_client_notices_that_its_socket_is_anothers_now(home: Path) -> None:
    place = local.LocalServer()
    with Client() as client:
        assert client.run("1 + 1").text == "2"
        assert local.stop()
        shutil.rmtree(place.runtime)
        stranger = Stranger(place.runtime, keeps_directory=True)
        try:
            with pytest.raises(LocalServerError, match="not a directory of yours"):
                client.run("1", env={"TOKEN": "my-secret"})
        finally:
            heard = stranger.leave()
    assert heard == b""


def test_only_what_the_server_needs_is_passed_on(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_DATASET_SOURCES", '{"a/": {"url": "http://x/{name}", "headers": {"k": "${MY_TOKEN}"}}}')
    monkeypatch.setenv("MY_TOKEN", "t")
    monkeypatch.setenv("BELLJAR_API_KEY", "k")
    monkeypatch.setenv("BELLJAR_MEMORY", "1G")
    monkeypatch.setenv("DATASETS_HOST_RO", "data")
    # An earlier test of this process may have used tools that need it.
    monkeypatch.setattr(local, "_passes_model_key", False)
    environment = local._environment(local.LocalServer())
    assert environment["MY_TOKEN"] == "t"
    assert environment["BELLJAR_MEMORY"] == "1G"
    assert environment["DATASETS_HOST_RO"] == os.path.abspath("data")
    assert not {"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "BELLJAR_API_KEY", "BELLJAR_BINARY"} & set(environment)
