"""Streams: everything once and in order, whatever happens to connections and servers."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest
from servers import CuttingProxy, Server

from belljar import (
    ArtifactsEvent,
    AsyncClient,
    Client,
    Display,
    Done,
    ErrorEvent,
    InvalidRequest,
    ResultEvent,
    ServerUnavailable,
    Session,
    Stderr,
    Stdout,
)

COUNTING = "import time\nfor i in range({n}):\n    print(i, flush=True)\n    time.sleep({pause})\n'end'"


def lines(n: int) -> str:
    return "".join(f"{i}\n" for i in range(n))


def test_events_are_typed_and_in_order(session: Session) -> None:
    code = """
import sys
print('out', flush=True)
print('err', file=sys.stderr, flush=True)
display('shown')
open('/session/artifacts/a.txt', 'w').write('left')
"""
    events = list(session.stream(code))
    kinds = [type(event) for event in events]
    assert {Stdout, Stderr, Display, ResultEvent, ArtifactsEvent} <= set(kinds)
    assert kinds[-1] is Done
    assert [event.position for event in events] == sorted(event.position for event in events)
    done = events[-1]
    assert isinstance(done, Done)
    result = done.result
    assert (result.stdout, result.stderr, result.text) == ("out\n", "err\n", "4")
    assert [artifact.name for artifact in result.artifacts] == ["a.txt"]
    assert list(result.artifact_map) == ["/session/artifacts/a.txt"]


def test_a_stream_can_be_waited_for_until_it_was_accepted(session: Session) -> None:
    stream = session.stream("x = input()\nprint('got', x)", stdin=True)
    exec_id = stream.accepted()
    # It goes on without a listener.
    assert exec_id == stream.exec_id == stream.accepted()
    assert session.get_exec(exec_id).state != "finished"
    stream.send("it\n")
    assert stream.result().stdout == "got it\n"
    assert session.join(exec_id).accepted() == exec_id
    with pytest.raises(InvalidRequest):
        session.stream("1", language="cobol").accepted()  # type: ignore[arg-type]
    closed = session.stream("1")
    closed.close()
    with pytest.raises(ServerUnavailable, match="closed before"):
        closed.accepted()


def test_a_run_that_fails_to_begin_says_so_as_any_call_does(client: Client) -> None:
    for streamed in (None, print):
        with pytest.raises(InvalidRequest) as caught:
            client.run("1", image="debian", on_output=streamed)
        assert (caught.value.status, caught.value.code) == (422, "invalid")


def test_a_display_is_told_from_the_value(session: Session) -> None:
    for streamed in (None, lambda _: None):
        result = session.run_code("display('shown'); 6 * 7", on_output=streamed)
        assert [bundle.kind for bundle in result.results] == ["display", "result"]
        assert result.value is not None
        assert result.value.text == "42"
        assert session.run_code("display('shown')", on_output=streamed).value is None


def test_a_streamed_result_is_the_same_as_another(session: Session) -> None:
    code = "print(1); display(2); open('/session/artifacts/b', 'w').write('b'); raise ValueError('no')"
    stream = session.stream(code, exec_id="same")
    streamed = stream.result()
    assert any(isinstance(event, ErrorEvent) for event in session.join("same"))
    fetched = session.get_exec("same").result
    assert fetched is not None
    # Every response has new links.
    leave = {"artifacts": {"__all__": {"url"}}}
    assert streamed.model_dump(exclude=leave) == fetched.model_dump(exclude=leave)
    assert session.join("same", offset=2).result().stdout == "1\n"


def test_either_code_or_a_command(session: Session) -> None:
    assert session.stream(command=["echo", "x"]).result().stdout == "x\n"
    with pytest.raises(InvalidRequest, match="either `code` or `command`"):
        session.stream()
    with pytest.raises(InvalidRequest, match="either `code` or `command`"):
        session.stream("1", command="2")


def test_leaving_early_leaves_the_code_alone(session: Session) -> None:
    with session.stream(COUNTING.format(n=3, pause=0.1)) as stream:
        next(stream)
    assert list(stream) == []
    with pytest.raises(ServerUnavailable, match="closed before"):
        stream.result()
    assert stream.exec_id is not None
    assert session.join(stream.exec_id).result().stdout == lines(3)


@pytest.mark.parametrize("cuts", [[0], [1], [180, 200, 220], [250] * 8, [400, 0, 0, 300]])
def test_a_bad_line_changes_nothing(server: Server, short_path: Path, cuts: list[int]) -> None:
    line = CuttingProxy(server, short_path / "bad")
    try:
        with Client(line.url) as client, client.session() as session:
            session.run_code("n = 0")
            client.close()
            line.cuts = list(cuts)
            with session.stream("n += 1\n" + COUNTING.format(n=30, pause=0.01)) as stream:
                text = "".join(event.text for event in stream if isinstance(event, Stdout))
                assert text == stream.result().stdout == lines(30)
            assert not line.cuts, "each was used"
            client.close()
            line.cuts = [0, 150]
            assert session.run_code("n += 1; n").text == "2", "executed once each"
            assert not line.cuts
    finally:
        line.close()


def test_the_server_is_killed_while_it_tells(mortal: Server) -> None:
    with Client(mortal.url) as client, client.session() as session:
        session.run_code("x = 41")
        texts = []
        with session.stream(COUNTING.format(n=60, pause=0.03)) as stream:
            for count, event in enumerate(stream):
                if isinstance(event, Stdout):
                    texts.append(event.text)
                if count in (5, 15):
                    mortal.kill()
                    threading.Timer(0.4, mortal.start).start()
        assert "".join(texts) == stream.result().stdout == lines(60)
        assert stream.result().ok
        assert stream.result().text == "'end'"
        assert session.run_code("x + 1").text == "42"


async def test_the_server_is_killed_while_many_listen(mortal: Server) -> None:
    async with AsyncClient(mortal.url) as client:
        begun: set[str] = set()

        async def one() -> tuple[str, str]:
            async with client.session() as session:
                text = ""
                stream = session.stream(COUNTING.format(n=40, pause=0.05))
                async for event in stream:
                    begun.add(session.id)
                    text += event.text if isinstance(event, Stdout) else ""
                waited = await session.run_code("import time; time.sleep(0.1); 7")
                return text, waited.text

        async def trouble() -> None:
            while len(begun) < 4:
                await asyncio.sleep(0.01)
            mortal.kill()
            await asyncio.sleep(0.3)
            await asyncio.to_thread(mortal.start)

        *reply, _ = await asyncio.gather(one(), one(), one(), one(), trouble())
        assert reply == [(lines(40), "7")] * 4


def test_a_result_is_waited_for_while_the_server_is_replaced(mortal: Server) -> None:
    with Client(mortal.url) as client, client.session() as session:
        session.run_code("n = 0")
        threading.Timer(0.3, mortal.kill).start()
        threading.Timer(0.8, mortal.start).start()
        assert session.run_code("import time; time.sleep(1.5); n += 1; n").text == "1"
        assert session.run_code("n").text == "1"


def test_patience_ends(mortal: Server) -> None:
    client = Client(mortal.url, patience=0.5)
    session = client.session()
    mortal.kill()
    began = time.monotonic()
    with pytest.raises(ServerUnavailable, match="nothing listens at"):
        session.stream("1").result()
    with pytest.raises(ServerUnavailable):
        session.run_code("1")
    assert time.monotonic() - began < 5
    mortal.start()
    assert session.run_code("2").text == "2"
    client.close()
