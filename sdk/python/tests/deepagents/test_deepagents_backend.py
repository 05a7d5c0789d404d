"""What deep agents get: commands, files, conversations that find their sandbox again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from deepagents import create_deep_agent
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from servers import Server

from belljar import Client, InvalidRequest, SessionEnded
from belljar.deepagents import BelljarProvider, BelljarSandbox


class Scripted(FakeMessagesListChatModel):
    """A scripted model."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
        return self


def asks(tool: str, **arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": tool, "args": arguments, "id": f"call-{tool}-{time.monotonic_ns()}"}])


def agent_that(*says: AIMessage, backend: BelljarSandbox) -> Any:
    return create_deep_agent(model=Scripted(responses=[*says, AIMessage("done")]), backend=backend)


def tool_answers(state: dict[str, Any]) -> list[str]:
    return [str(message.content) for message in state["messages"] if isinstance(message, ToolMessage)]


@pytest.fixture(scope="module")
def backend(server: Server) -> Iterator[BelljarSandbox]:
    with BelljarSandbox(url=server.url) as made:
        yield made


def test_a_command(backend: BelljarSandbox) -> None:
    ended = backend.execute("echo 1; echo 2 >&2; echo 3; pwd; exit 3")
    assert (ended.output, ended.exit_code, ended.truncated) == ("1\n2\n3\n/session\n", 3, False)


def test_a_command_keeps_its_own_lines(backend: BelljarSandbox) -> None:
    assert "line 2" in backend.execute("true\nnone-such").output
    assert backend.execute("if").exit_code == 2


def test_time_is_up(backend: BelljarSandbox) -> None:
    began = time.monotonic()
    ended = backend.execute("echo begun; sleep 60", timeout=1)
    assert (ended.output, ended.exit_code) == ("begun\nCommand timed out after 1 seconds", 124)
    assert time.monotonic() - began < 15
    assert backend.execute("echo on", timeout=0).output == "on\n"


def test_a_command_that_is_too_long_for_an_argument(backend: BelljarSandbox) -> None:
    words = "x" * 300_000
    ended = backend.execute(f"cat <<'END' | wc -c\n{words}\nEND\nexit 4")
    assert (ended.output.strip(), ended.exit_code) == ("300001", 4)
    assert backend.execute("ls -A /tmp | grep '[.]sh$'").output == ""


def test_a_command_that_no_shell_can_read(backend: BelljarSandbox) -> None:
    ended = backend.execute("echo a\0b")
    assert ended.exit_code == 1
    assert "NUL" in ended.output


def test_long_output_is_left_inside(backend: BelljarSandbox) -> None:
    ended = backend.execute("echo begin; seq 300000; echo end >&2; exit 5")
    assert ended.truncated
    assert ended.exit_code == 5
    assert ended.output.startswith("begin\n1\n")
    assert ended.output.endswith("300000\nend\n")
    assert len(ended.output) < 70_000
    [path] = [word.rstrip("]") for word in ended.output.split() if word.startswith("/session/.outputs/")]
    assert backend.execute(f"wc -l < {path}").output.strip() == "300002"
    # What `read` and `grep` make of commands comes whole.
    backend.execute("seq 300000 > /tmp/long; yes abc | head -c 1500000 > /tmp/abc")
    found = backend.grep("abc", "/tmp/abc")
    assert found.matches is not None
    assert len(found.matches) > 1000


def test_files_and_what_can_go_wrong_with_them(backend: BelljarSandbox) -> None:
    content = bytes(range(256)) * 100
    backend.execute("mkdir -p /tmp/d; touch /tmp/closed; chmod 0 /tmp/closed; mkfifo /tmp/pipe")
    up = backend.upload_files(
        [("/tmp/new/ü x", content), ("rel", b""), ("/tmp/d", b""), ("/usr/x", b""), ("/tmp/pipe/x", b"")]
    )
    assert [answer.error for answer in up] == [
        None,
        "invalid_path",
        "is_directory",
        "permission_denied",
        "invalid_path",
    ]
    paths = ["/tmp/new/ü x", "/none", "rel", "/tmp/d", "/tmp/closed", "/tmp/pipe", "/tmp/a\0b"]
    down = backend.download_files(paths)
    assert [answer.path for answer in down] == paths
    assert [answer.error for answer in down] == [
        None, "file_not_found", "invalid_path", "is_directory", "permission_denied", "invalid_path", "invalid_path",
    ]  # fmt: skip
    assert down[0].content == content


async def test_without_waiting(backend: BelljarSandbox) -> None:
    began = time.monotonic()
    ended = await asyncio.gather(*(backend.aexecute(f"sleep 1; echo {n}") for n in range(8)))
    assert [answer.output for answer in ended] == [f"{n}\n" for n in range(8)]
    assert time.monotonic() - began < 6, "they ran side by side"
    up = await backend.aupload_files([(f"/tmp/a{n}", b"%d" % n) for n in range(20)])
    assert not [answer for answer in up if answer.error]
    down = await backend.adownload_files([f"/tmp/a{n}" for n in range(20)])
    assert [answer.content for answer in down] == [b"%d" % n for n in range(20)]
    late = await backend.aexecute("sleep 60", timeout=1)
    assert late.exit_code == 124


async def test_a_cancelled_caller_interrupts_the_command(backend: BelljarSandbox) -> None:
    waiting = asyncio.create_task(backend.aexecute("touch /tmp/begun; sleep 300; touch /tmp/over"))
    while (await backend.aexecute("ls /tmp/begun")).exit_code:
        await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    for _ in range(100):
        if not (await backend.aexecute("ps -e -o args | grep '^sleep 300'")).output:
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it still runs")


def test_an_agent_works_in_it(backend: BelljarSandbox) -> None:
    agent = agent_that(
        asks("write_file", file_path="/session/a.py", content="print(6 * 7)\n"),
        asks("execute", command="python3 /session/a.py"),
        asks("read_file", file_path="/session/a.py"),
        backend=backend,
    )
    answers = tool_answers(agent.invoke({"messages": [("user", "go")]}))
    assert "42" in answers[1]
    assert "print(6 * 7)" in answers[2]


def test_every_thread_has_its_own_and_finds_it_again(server: Server) -> None:
    one: RunnableConfig = {"configurable": {"thread_id": "one"}}
    two: RunnableConfig = {"configurable": {"thread_id": "two"}}

    def go(config: RunnableConfig, command: str) -> str:
        # Another backend each time, as in another process.
        backend = BelljarSandbox("test-threads", per_thread=True, url=server.url)
        agent = agent_that(asks("execute", command=command), backend=backend)
        return tool_answers(agent.invoke({"messages": [("user", "go")]}, config))[0]

    go(one, "echo mine > /session/x")
    assert "mine" in go(one, "cat /session/x")
    assert "No such file" in go(two, "cat /session/x")
    with Client(server.url) as client:
        sessions = [session for key in ("one", "two") for session in client.sessions(key=f"test-threads::{key}")]
        assert len(sessions) == 2
        # A session that has ended is replaced, and the agent gets a notice.
        sessions[0].stop()
        reply = go(one, "cat /session/x")
        assert "is a new one" in reply
        assert "files and processes are gone" in reply
        assert "is a new one" not in go(one, "true")
        backend = BelljarSandbox("test-threads", per_thread=True, url=server.url)
        assert backend.stop_thread("one")
        assert asyncio.run(backend.astop_thread("two"))
        assert not backend.stop_thread("one")
        assert not any(session.is_alive() for session in sessions)


def test_no_thread_is_called_so_that_it_is_anothers(server: Server) -> None:
    keys = {
        BelljarSandbox(key, per_thread=True, url=server.url)._key_of(thread)
        for key, thread in [("app", "1:alice"), ("app:1", "alice"), ("app::1", "alice"), ("app", "1::alice")]
    }
    assert len(keys) == 4


async def test_output_comes_while_it_runs(backend: BelljarSandbox) -> None:
    agent = agent_that(
        asks("ls", path="/session"),
        asks("execute", command="for i in 1 2 3; do echo line $i; sleep 0.3; done"),
        backend=backend,
    )
    heard: list[tuple[float, str]] = []
    async for reply in agent.astream({"messages": [("user", "go")]}, stream_mode="custom"):
        assert reply["type"] == "belljar.output"
        assert reply["sandbox"] == backend.id
        heard.append((time.monotonic(), reply["text"]))
    assert "".join(text for _, text in heard) == "line 1\nline 2\nline 3\n", "and nothing of `ls`"
    assert heard[-1][0] - heard[0][0] > 0.4


def test_a_session_that_ends_is_not_replaced_in_silence(server: Server, client: Client) -> None:
    with BelljarSandbox(url=server.url) as backend:
        backend.execute("echo mine > x")
        backend.session().stop()
        reply = backend.execute("cat x")
        assert reply.exit_code == 1
        assert "is a new one" in reply.output
        assert "was not run" in reply.output
        assert backend.execute("echo on").output == "on\n"
        backend.session().stop()
        with pytest.raises(SessionEnded):
            backend.download_files(["/session/x"])
        reply = backend.execute("echo again")
        assert "is a new one" in reply.output
        assert reply.output.endswith("\nagain\n")
        assert reply.exit_code == 0
        # The agent does not see the output of `ls`, so the next command has the notice.
        backend.session().stop()
        backend.ls("/session")
        assert "is a new one" in backend.execute("true").output
    # One that was given is not replaced at all.
    session = client.session()
    given = BelljarSandbox(session)
    assert given.id == session.id
    assert given.execute("echo here").output == "here\n"
    given.close()
    assert session.is_alive(), "it is not ours to stop"
    session.stop()
    for call in (lambda: given.execute("true"), lambda: given.upload_files([("/tmp/x", b"")])):
        with pytest.raises(SessionEnded):
            call()
    with pytest.raises(InvalidRequest):
        BelljarSandbox(session, per_thread=True)


async def test_its_own_session_ends_with_it(server: Server, client: Client) -> None:
    async with BelljarSandbox(url=server.url, limits={"memory": "128M"}) as backend:
        await backend.aexecute("true")
        [session] = client.sessions(key=backend.id)
        assert session.info.limits.memory == 128 << 20
    assert not session.is_alive()


async def test_the_provider(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_URL", server.url)
    provider = BelljarProvider()
    made = provider.get_or_create(timeout=7, limits={"memory": "128M"})
    assert made.execute("echo there; touch /session/x").exit_code == 0
    again = await provider.aget_or_create(sandbox_id=made.id)
    assert again.id == made.id
    assert again.execute("ls /session/x").exit_code == 0
    provider.delete(sandbox_id=made.id)
    provider.delete(sandbox_id="none")
    with pytest.raises(Exception, match="has ended"):
        provider.get_or_create(sandbox_id=made.id)
    other = await provider.aget_or_create()
    await provider.adelete(sandbox_id=other.id)
    with pytest.raises(SessionEnded):
        other.execute("true")
