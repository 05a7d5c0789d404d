"""The asynchronous client: the same, natively."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest
from conftest import SMALL
from servers import Server

import belljar
from belljar import AsyncClient, InputRequest, Stderr, Stdout


async def test_a_run_and_a_session(aclient: AsyncClient) -> None:
    assert (await aclient.run("6 * 7")).text == "42"
    async with aclient.session() as session:
        await session.run_code("x = 41")
        assert (await session.run_code("x + 1")).text == "42"
        assert (await session.run_command(["echo", "hi"])).stdout == "hi\n"
        assert (await session.state())["x"].preview == "41"
        assert len(await session.log()) == 3
        assert len(await session.execs()) == 3
        texts = [event.text async for event in session.stream("print(1)") if isinstance(event, Stdout)]
        assert "".join(texts) == "1\n"
    assert not await session.is_alive()
    awaited = await aclient.session("by key")
    assert (await aclient.get_session(awaited.id)).key == "by key"
    assert awaited.id in [found.id for found in await aclient.sessions()]
    await awaited.stop()
    assert (await aclient.health()).ok
    assert await aclient.usage()


async def test_callbacks_may_be_coroutines(aclient: AsyncClient) -> None:
    received: list[str] = []

    async def receive(event: Stdout | Stderr) -> None:
        await asyncio.sleep(0)
        received.append(event.text)

    await aclient.run("print(1)", on_output=receive)
    await aclient.run("print(2)", on_output=lambda event: received.append(event.text))
    assert "".join(received) == "1\n2\n"


async def test_a_hundred_sessions_at_once(aclient: AsyncClient) -> None:
    async def one(number: int) -> str:
        async with aclient.session(limits=SMALL) as session:
            await session.run_code(f"x = {number}")
            return (await session.run_code("x * 2")).text

    assert await asyncio.gather(*map(one, range(100))) == [str(number * 2) for number in range(100)]


async def test_a_cancelled_caller_interrupts_the_code(aclient: AsyncClient) -> None:
    async with aclient.session() as session:
        for on_output in (None, lambda event: None):
            began = time.monotonic()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(session.run_code("import time; time.sleep(30)", on_output=on_output), 0.5)
            assert (await session.run_code("1")).text == "1"
            assert time.monotonic() - began < 10
        statuses = [info.result.status for info in await session.execs() if info.result is not None]
        assert statuses.count("interrupted") == 2


async def test_a_stream_can_be_waited_for_in_vain(aclient: AsyncClient) -> None:
    async with aclient.session() as session:
        stream = session.stream("import time; print(1, flush=True); time.sleep(1); print(2)")
        texts = []
        while True:
            try:
                event = await asyncio.wait_for(stream.__anext__(), 0.3)
            except asyncio.TimeoutError:
                continue
            except StopAsyncIteration:
                break
            texts += [event.text] if isinstance(event, Stdout) else []
        assert "".join(texts) == "1\n2\n"


async def test_input(aclient: AsyncClient) -> None:
    async with aclient.session() as session, session.stream("x = input('?')", stdin=True) as stream:
        async for event in stream:
            if isinstance(event, InputRequest):
                await stream.send("1\n")
        assert (await session.run_code("x")).text == "'1'"


async def test_files_both_ways(aclient: AsyncClient, tmp_path: Path) -> None:
    content = bytes(range(256)) * 4000
    async with aclient.session(datasets="API") as session:
        dataset = await session.datasets.upload(content, "in.bin")
        code = f"open('/session/artifacts/out.bin', 'wb').write(open({dataset.path!r}, 'rb').read()[::-1])"
        [artifact] = (await session.run_code(code)).artifacts
        assert await session.artifacts.read(artifact) == content[::-1]
        assert (await session.artifacts.download(artifact, tmp_path)).read_bytes() == content[::-1]
        assert [chunk async for chunk in session.artifacts.chunks(artifact, start=2, end=5)] == [content[::-1][2:5]]


def test_one_client_in_many_loops(server: Server) -> None:
    client = AsyncClient(server.url)

    async def twice() -> list[str]:
        return [(await client.run("1")).text, (await client.run("2")).text]

    assert [asyncio.run(twice()) for _ in range(3)] == [["1", "2"]] * 3
    answers: list[list[str]] = []
    threads = [threading.Thread(target=lambda: answers.append(asyncio.run(twice()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [["1", "2"]] * 4


async def test_arun(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BELLJAR_URL", server.url)
    results = await asyncio.gather(*(belljar.arun(f"{number} ** 2") for number in range(5)))
    assert [result.text for result in results] == ["0", "1", "4", "9", "16"]
