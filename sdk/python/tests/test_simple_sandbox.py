"""Three calls, and the client of those who know no more."""

from __future__ import annotations

import pytest
from servers import Server

import belljar
from belljar import Client, InvalidRequest, NotFound, SandboxClient, SessionEnded


def test_commands_remember_each_other(server: Server, client: Client) -> None:
    with SandboxClient(server_url=server.url) as sandbox:
        assert sandbox.execute("echo Hello") == {"output": "Hello\n", "exit_code": 0}
        sandbox.execute("mkdir -p /tmp/d && cd /tmp/d && export WHO=Ada")
        assert sandbox.execute("pwd; echo $WHO")["output"] == "/tmp/d\nAda\n"
        assert sandbox.execute("echo out; echo err >&2; ls /none; (exit 3)")["exit_code"] == 3
        assert sandbox.session_id is not None
        session = client.get_session(sandbox.session_id)
        assert session.is_alive()
    assert sandbox.session_id is None
    assert not session.is_alive()


def test_both_streams_come_in_their_order(server: Server) -> None:
    with SandboxClient(server.url) as sandbox:
        command = "for i in 1 3 5 7; do echo $i; echo $((i + 1)) >&2; done"
        assert sandbox.execute(command)["output"].split() == list("12345678")


def test_a_command_that_takes_too_long(server: Server) -> None:
    with SandboxClient(server.url) as sandbox:
        ended = sandbox.execute("sleep 60", timeout=0.3)
        assert ended["exit_code"] == 124
        assert sandbox.execute("echo still here")["output"] == "still here\n"


def test_without_a_with_block(server: Server) -> None:
    sandbox = belljar.SandboxClient(server.url)
    with pytest.raises(InvalidRequest, match="no sandbox yet"):
        sandbox.execute("true")
    first = sandbox.create_session()
    assert sandbox.create_session() == first
    assert sandbox.execute("true")["exit_code"] == 0
    sandbox.cleanup()
    sandbox.cleanup()
    sandbox.close()


def test_an_error_inside_is_the_one_that_is_seen(server: Server, client: Client) -> None:
    def fail() -> None:
        with SandboxClient(server.url) as sandbox:
            client.get_session(str(sandbox.session_id)).stop()
            with pytest.raises((SessionEnded, NotFound)):
                sandbox.execute("true")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_it_is_found_in_the_environment(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_URL", server.url)
    with SandboxClient() as sandbox:
        assert sandbox.execute("echo there")["output"] == "there\n"
