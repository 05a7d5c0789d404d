"""Sessions that sleep, branch and go back."""

from __future__ import annotations

import pytest

from belljar import AsyncClient, Client, Conflict, NotFound, Session


def test_a_session_sleeps_and_wakes_with_everything(session: Session) -> None:
    session.run_code("x = [1]; y = x; open('f', 'w').write('hello')")
    assert session.hibernate().state == "hibernated"
    assert session.log()[0].code.startswith("x = [1]")
    assert session.refresh().state == "hibernated", "reading what was said wakes nobody"
    result = session.run_code("y is x, open('f').read()")
    assert (result.text, result.kernel_state) == ("(True, 'hello')", "kept")


def test_what_cannot_be_kept_is_named(session: Session) -> None:
    session.run_code("import threading, time\nthreading.Thread(target=time.sleep, args=(99,), name='clock').start()")
    with pytest.raises(Conflict, match="clock"):
        session.hibernate()
    assert session.refresh().state == "ready"
    session.run_code("x = 1")
    (fork,) = session.fork(force=True)
    with fork:
        assert fork.info.lost == ["thread `clock` is alive"]
        assert fork.run_code("x").text == "1"
    slept = session.hibernate(force=True)
    assert (slept.state, slept.lost) == ("hibernated", ["thread `clock` is alive"])
    assert session.run_code("x, threading.active_count()").text == "(1, 1)", "variables are never lost for it"
    assert session.hibernate().lost == []


def test_forks_go_their_own_ways(session: Session) -> None:
    session.run_code("x = 1")
    first, second = session.fork(2)
    with first, second:
        first.run_code("x += 1")
        assert [one.run_code("x").text for one in (session, first, second)] == ["1", "2", "1"]
        first.stop()
        second.stop()


def test_a_session_goes_back_and_begins_again_from_there(client: Client) -> None:
    with client.session(checkpoints=True) as session:
        assert session.info.checkpoints == {"max": 20, "max_bytes": 256 << 20}
        steps = [session.run_code(f"x = {n}") for n in range(3)]
        assert all(step.checkpoint for step in steps)
        assert [point.exec_id for point in session.checkpoints()] == [step.exec_id for step in steps]
        session.restore(steps[0].exec_id)
        assert session.run_code("x").text == "0"
        (fork,) = session.fork(exec_id=steps[1].exec_id)
        assert fork.run_code("x").text == "1"
        fork.stop()
        with pytest.raises(NotFound):
            session.restore("exec_unknown")


async def test_the_same_without_waiting(aclient: AsyncClient) -> None:
    async with aclient.session(checkpoints={"max": 2}) as session:
        first = await session.run_code("x = 1")
        await session.run_code("x = 2")
        await session.hibernate()
        await session.restore(first.exec_id)
        assert (await session.run_code("x")).text == "1"
