"""A shell in a session that looks like a process here."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ShellToolMiddleware
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, ToolMessage
from servers import Server

from belljar import Client, Session
from belljar.shell_policy import BelljarExecutionPolicy


class Scripted(FakeMessagesListChatModel):
    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


@pytest.fixture
def policy(server: Server) -> Iterator[BelljarExecutionPolicy]:
    with BelljarExecutionPolicy(url=server.url, limits={"memory": "128M"}) as made:
        yield made


def spawn(policy: BelljarExecutionPolicy, workspace: Path, *command: str, **env: str) -> subprocess.Popen[str]:
    return policy.spawn(workspace=workspace, env=env, command=command or ("/bin/bash",))


def wait_for(what: str, is_so: Any) -> None:
    deadline = time.monotonic() + 15
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def test_pipes_and_exit_status(policy: BelljarExecutionPolicy, tmp_path: Path) -> None:
    shell = spawn(policy, tmp_path, WHO="Ada")
    # Who lists processes on this machine does not read what may be a secret.
    assert b"Ada" not in Path(f"/proc/{shell.pid}/cmdline").read_bytes()
    out, err = shell.communicate("echo $WHO; pwd; cd /tmp; x=1\necho $x $PWD grüße; echo oh >&2; exit 7\n", timeout=30)
    assert (out, err, shell.returncode) == ("Ada\n/session\n1 /tmp grüße\n", "oh\n", 7)
    # At the end of its input a shell ends too.
    shell = spawn(policy, tmp_path, "/bin/sh")
    assert shell.communicate("echo $0; false", timeout=30)[0] == "/bin/sh\n"
    assert shell.returncode == 1


def test_what_cannot_be_run(policy: BelljarExecutionPolicy, tmp_path: Path) -> None:
    shell = spawn(policy, tmp_path, "/none/such")
    _, err = shell.communicate(timeout=30)
    assert shell.returncode == 127
    assert err
    policy._own[tmp_path].stop()
    bridge = spawn(policy, tmp_path)  # in a new session, as the old one has ended
    assert bridge.communicate("echo new", timeout=30)[0] == "new\n"


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_shell_dies_with_the_bridge(policy: BelljarExecutionPolicy, tmp_path: Path, how: signal.Signals) -> None:
    shell = spawn(policy, tmp_path)
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write("echo ready; sleep 300\n")
    shell.stdin.flush()
    assert shell.stdout.readline() == "ready\n"
    session = policy._own[tmp_path]
    os.killpg(shell.pid, how)
    assert shell.wait(10) == -how
    wait_for("nothing of it runs", lambda: session.refresh().running == 0)
    assert "sleep" not in session.run_command("ps -e -o args").stdout
    for pipe in (shell.stdin, shell.stdout, shell.stderr):
        assert pipe is not None
        pipe.close()


def test_the_shell_outlives_the_server(mortal: Server, tmp_path: Path) -> None:
    with BelljarExecutionPolicy(url=mortal.url) as policy:
        shell = spawn(policy, tmp_path)
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write("x=41; echo begun\n")
        shell.stdin.flush()
        assert shell.stdout.readline() == "begun\n"
        mortal.kill()
        mortal.start()
        assert shell.communicate("echo $((x + 1)); exit 5\n", timeout=30) == ("42\n", "")
        assert shell.returncode == 5


def _agent(policy: BelljarExecutionPolicy, *commands: str, **options: Any) -> Any:
    says = [
        AIMessage("", tool_calls=[{"name": "shell", "args": {"command": command}, "id": f"call-{number}"}])
        for number, command in enumerate(commands)
    ]
    model = Scripted(responses=[*says, AIMessage("done")])
    return create_agent(model, middleware=[ShellToolMiddleware(execution_policy=policy, **options)])


def _answers(state: dict[str, Any]) -> list[str]:
    return [str(message.content) for message in state["messages"] if isinstance(message, ToolMessage)]


def test_an_agent_with_a_shell(policy: BelljarExecutionPolicy) -> None:
    agent = _agent(
        policy, "cd /tmp && x=41", "echo $((x + 1)) $PWD $WHO", "ls /none", "seq 3", env={"WHO": "Ada"},
        startup_commands=["echo begun > /session/begun"],
    )  # fmt: skip
    answers = _answers(agent.invoke({"messages": [("user", "go")]}))
    assert "42 /tmp Ada" in answers[1]
    assert "[stderr]" in answers[2]
    assert "1\n2\n3" in answers[3]


def test_a_shell_that_hangs_is_started_again_among_its_files(server: Server) -> None:
    with BelljarExecutionPolicy(url=server.url, command_timeout=3.0, termination_timeout=0.5) as policy:
        agent = _agent(policy, "echo kept > /session/x; y=1; sleep 300", "cat /session/x; echo y=$y")
        answers = _answers(agent.invoke({"messages": [("user", "go")]}))
        assert "timed out" in answers[0].lower()
        assert "kept\ny=\n" in answers[1]
        [session] = policy._own.values()
        wait_for("the first shell is gone", lambda: session.refresh().running == 0)
        # The run is over, and so is its workspace: the next shell sweeps it away.
        _agent(policy, "true").invoke({"messages": [("user", "go")]})
        assert not session.is_alive()


def test_a_session_by_its_key_stays(server: Server, client: Client, tmp_path: Path) -> None:
    with BelljarExecutionPolicy(url=server.url, session="shells") as policy:
        assert spawn(policy, tmp_path).communicate("touch x; echo", timeout=30)[0] == "\n"
        assert spawn(policy, tmp_path / "other").communicate("ls x", timeout=30)[0] == "x\n"
    found: Session = client.session("shells")
    assert found.info.how == "found"
    found.stop()
