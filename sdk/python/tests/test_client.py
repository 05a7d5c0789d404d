"""The synchronous client, against a real server."""

from __future__ import annotations

import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import SMALL
from servers import CLUSTER, Server

from belljar import BelljarError, Client, ExecutionError, NotFound, Result, Session, Stderr, Stdout


def test_a_run(client: Client) -> None:
    result = client.run("import sys; print('hi'); print('oh', file=sys.stderr); 6 * 7")
    assert (result.text, result.stdout, result.stderr) == ("42", "hi\n", "oh\n")
    assert (result.status, result.ok, result.exit_code, result.kernel_state) == ("ok", True, 0, "kept")
    assert result.duration_ms > 0
    assert not result.dropped
    assert result.raise_for_error() is result


def test_a_run_in_bash_with_an_environment(client: Client) -> None:
    assert client.run("echo $WHO", language="bash", env={"WHO": "Ada"}).text == "Ada\n"


def test_a_run_that_tells_as_it_goes(client: Client) -> None:
    received: list[str] = []
    result = client.run("for i in range(3): print(i, flush=True)", on_output=lambda event: received.append(event.text))
    assert "".join(received) == result.stdout == "0\n1\n2\n"


def test_limits_that_are_not_enforced_are_in_warnings() -> None:
    # Below a control group that is not there no other can be made, and without those there are no limits.
    server = Server(Path(tempfile.mkdtemp(prefix="s-")), BELLJAR_CGROUP_PARENT="no-such/parent").start()
    try:
        with Client(server.url) as client, client.session() as session:
            expected = [
                f"not enforced on the server's machine: {limit}; `belljar doctor` says why"
                for limit in ("cpu limit", "memory limit", "process limit")
            ]
            assert session.info.warnings == expected
            assert client.run("1").warnings == expected
            assert client.run("1", on_output=lambda _: None).warnings == expected
            health = client.health()
            assert health.directories is not None
            assert health.directories["state"] == server.env["BELLJAR_STATE_DIR"]
            assert (health.memory_used or 0) > 1 << 20
            assert health.pid
    finally:
        server.stop()
        shutil.rmtree(server.directory, ignore_errors=True)


def test_a_run_leaves_artifacts(client: Client) -> None:
    result = client.run("open('/work/artifacts/ü.bin', 'wb').write(bytes(range(256)))")
    [artifact] = result.artifacts
    assert client.artifacts.read(artifact) == bytes(range(256))
    assert artifact.host_path == result.artifact_map["/work/artifacts/ü.bin"]
    assert Path(artifact.host_path).read_bytes() == bytes(range(256))


def test_a_network_is_the_servers_to_give(client: Client) -> None:
    for ask in (client.run, client.session):
        with pytest.raises(BelljarError) as refused:
            ask("1", network={"allow": ["example.org"]})
        assert refused.value.code == "network_not_allowed"
    with client.session(network="none") as session:
        assert session.info.network == "none"


def test_code_that_fails_is_no_exception(client: Client) -> None:
    result = client.run("1 / 0")
    assert (result.status, result.ok) == ("error", False)
    assert result.error is not None
    assert result.error.name == "ZeroDivisionError"
    assert "line 1" in result.error.traceback
    with pytest.raises(ExecutionError, match="ZeroDivisionError: division by zero"):
        result.raise_for_error()
    assert not client.run("import sys; sys.exit(3)").ok


def test_timeouts_hold(session: Session) -> None:
    session.run_code("x = 1")
    began = time.monotonic()
    result = session.run_code("while True: pass", timeout=0.5)
    assert result.status == "timeout"
    assert time.monotonic() - began < 10
    assert session.run_command("sleep 60", timeout=0.3).status == "timeout"
    assert result.kernel_state == "kept"
    assert session.run_code("x").text == "1"


def test_a_session_remembers(session: Session) -> None:
    session.run_code("x = 41")
    assert session.run_code("x + 1").text == "42"
    session.run_code("cd /tmp; export A=b", language="bash")
    assert session.run_code("pwd; echo $A", language="bash").stdout == "/tmp\nb\n"
    state = session.state()
    assert state["x"].preview == "41"
    assert "y" not in state
    assert [entry.code for entry in session.log()][:2] == ["x = 41", "x + 1"]
    assert [info.number for info in session.execs(limit=2)] == [4, 3]
    first = session.execs(limit=None)[-1]
    again = session.get_exec(first.exec_id)
    assert (again.state, again.language) == ("finished", "python")
    assert again.result is not None
    assert again.result.ok


def test_commands(session: Session) -> None:
    assert session.run_command(["echo", "a b", "$HOME"]).stdout == "a b $HOME\n"
    assert session.run_command("pwd; echo $A; exit 3", cwd="/tmp", env={"A": "1"}).stdout == "/tmp\n1\n"
    failed = session.run_command("exit 3")
    assert (failed.status, failed.exit_code) == ("error", 3)


def test_output_comes_as_it_happens(session: Session) -> None:
    times: list[float] = []
    texts: list[str] = []

    def receive(event: Stdout | Stderr) -> None:
        times.append(time.monotonic())
        texts.append(event.text)

    code = "import time\nfor i in range(3):\n    print(i, flush=True)\n    time.sleep(0.3)"
    result = session.run_code(code, on_output=receive)
    assert "".join(texts) == result.stdout == "0\n1\n2\n"
    assert times[-1] - times[0] > 0.3


def test_big_output(session: Session) -> None:
    result = session.run_code("print('x' * 5_000_000)", max_output="8M")
    assert len(result.stdout) == 5_000_001
    assert not result.dropped
    received = 0

    def count(event: Stdout | Stderr) -> None:
        nonlocal received
        received += len(event.text)

    assert session.run_code("print('y' * 5_000_000)", max_output="8M", on_output=count).stdout.startswith("yyy")
    assert received == 5_000_001
    cut = session.run_code("print('z' * 3_000_000)")
    assert len(cut.stdout) == 1 << 20
    assert cut.dropped.stdout_bytes == 3_000_001 - (1 << 20)


def test_unicode_and_bytes(session: Session) -> None:
    text = "ü 日本 🐍 \u2028 \x00 \\n"
    assert session.run_code(f"print({text!r})").stdout == text + "\n"
    streamed = session.stream(f"print({text!r} * 1000)").result()
    assert streamed.stdout == text * 1000 + "\n"
    assert session.run_command(r"printf 'a\xff\xfeb'").stdout == "a��b"
    assert session.run_code("'" + "é" * 100_000 + "'").text == repr("é" * 100_000)


def test_rich_results(session: Session) -> None:
    code = """
class Picture:
    def _repr_png_(self): return b'\\x89PNG'
    def _repr_html_(self): return '<b>p</b>'
Picture()
"""
    [bundle] = session.run_code(code).results
    assert (bundle.png, bundle.html) == (b"\x89PNG", "<b>p</b>")


def test_background_and_join(session: Session) -> None:
    started = session.run_code("import time; print('a', flush=True); time.sleep(0.5); print('b')", background=True)
    assert started.state == "running"
    assert started.background
    assert session.run_code("1 + 1").text == "2"
    stream = session.join(started.exec_id)
    first = next(stream)
    assert isinstance(first, Stdout)
    stream.close()
    rest = session.join(started.exec_id, offset=first.position)
    # However it was cut, the rest is what follows.
    assert first.text + "".join(event.text for event in rest if isinstance(event, Stdout)) == "a\nb\n"
    assert rest.result().stdout == "a\nb\n"
    command = session.run_command("echo done", background=True)
    assert session.join(command.exec_id).result().stdout == "done\n"


def test_asked_twice_executed_once(session: Session) -> None:
    session.run_code("n = 0")
    for _ in range(3):
        assert session.run_code("n += 1; n", exec_id="mine").text == "1"
    for _ in range(2):
        started = session.run_command("echo once >> /session/a; cat /session/a", background=True, exec_id="mine-too")
        assert session.join(started.exec_id).result().stdout == "once\n"
    assert (started.state, started.number) == ("finished", 3)


def test_interrupting(session: Session) -> None:
    results: list[Result] = []
    code = "import time\nprint('on', flush=True)\ntime.sleep(30)"
    with session.stream(code) as stream:
        assert isinstance(next(stream), Stdout)
        assert stream.interrupt()
        results.append(stream.result())
        assert not stream.interrupt()
    assert results[0].status == "interrupted"
    assert session.interrupt() == 0


def test_ctrl_c_interrupts_the_code(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def press(event: Stdout | Stderr) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        session.run_code("import time\nprint('on', flush=True)\ntime.sleep(30)", on_output=press)
    began = time.monotonic()
    assert session.run_code("1").text == "1"
    assert time.monotonic() - began < 10


def test_sessions_are_found_by_key(client: Client) -> None:
    with client.session("alice", limits={"memory": "128M", "cpus": 0.5, "pids": 64}, metadata={"a": [1]}) as session:
        assert session.info.how == "created"
        assert session.key == "alice"
        assert (session.info.limits.memory, session.info.limits.cpus) == (128 << 20, 0.5)
        assert session.info.metadata == {"a": [1]}
        session.run_code("x = 1")
    again = client.session("alice")
    assert (again.id, again.info.how) == (session.id, "found")
    assert again.run_code("x").text == "1"
    assert [found.id for found in client.sessions(key="alice")] == [session.id]
    assert again.id in [found.id for found in client.sessions(state="ready", limit=None)]
    assert client.get_session(session.id).info.key == "alice"
    assert again.extend(7200).expires > session.info.expires
    assert again.stop().state == "stopped"
    assert again.stop().state == "stopped"
    assert not again.is_alive()
    anew = client.session("alice", stop_on_exit=True)
    with anew:
        assert anew.info.replaced is not None
        assert anew.info.replaced.id == session.id
    assert client.get_session(anew.id).info.ended_because == "it was stopped"


def test_without_a_key_a_session_ends_with_its_block(client: Client) -> None:
    with client.session(env={"A": "b"}, ttl=60, idle_timeout=30) as session:
        assert session.run_command("echo $A").stdout == "b\n"
    assert not session.is_alive()
    with pytest.raises(RuntimeError, match="mine"), client.session() as session:
        raise RuntimeError("mine")
    assert not session.is_alive()


def test_files_outlive_a_session_with_bind(client: Client) -> None:
    session = client.session(storage="BIND")
    session.run_code("open('/session/a', 'w').write('kept')")
    session.stop()
    assert session.start().state == "ready"
    assert session.run_code("open('/session/a').read()").text == "'kept'"
    session.stop()


def test_a_removed_session_is_gone_with_its_files(client: Client) -> None:
    for ended in (False, True):
        session = client.session("removed", storage="BIND")
        session.run_code("open('/session/a', 'w').write('precious')")
        if ended:
            session.stop()
        session.remove()
        with pytest.raises(NotFound):
            session.remove()
        with pytest.raises(NotFound):
            client.get_session(session.id)
    anew = client.session("removed", storage="BIND")
    assert anew.info.how == "created"
    assert "a" not in [file.path for file in anew.files.list("/session").files]
    anew.remove()


def test_input(session: Session) -> None:
    from belljar import InputRequest

    with session.stream("name = input('Who? ')\nprint('hi', name)", stdin=True) as stream:
        for event in stream:
            if isinstance(event, InputRequest):
                assert event.prompt == "Who? "
                stream.send("Ada\n")
        assert "hi Ada\n" in stream.result().stdout


def test_threads_share_a_client(client: Client) -> None:
    def work(number: int) -> list[str]:
        with client.session(limits=SMALL) as session:
            session.run_code(f"x = {number}")
            return [session.run_code("x").text for _ in range(5)]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(16))) == [[str(number)] * 5 for number in range(16)]


def test_threads_share_a_session(session: Session) -> None:
    session.run_code("n = 0")
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: session.run_code("n += 1"), range(24)))
    assert session.run_code("n").text == "24"


def test_a_long_wait_becomes_a_stream(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    from belljar import _calls

    monkeypatch.setattr(_calls, "RESULT_TIMEOUT", 0.2)
    session.run_code("n = 0")
    assert session.run_code("import time; time.sleep(1); n += 1; n").text == "1"


def test_a_child_process_makes_its_own_connections(client: Client) -> None:
    import multiprocessing

    client.health()
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    children = [context.Process(target=lambda: answers.put(client.run("1 + 1").text)) for _ in range(3)]
    for child in children:
        child.start()
    assert client.run("2 + 2").text == "4"
    assert [answers.get(timeout=20) for _ in children] == ["2"] * 3
    for child in children:
        child.join()


def test_the_server_tells_of_itself(client: Client) -> None:
    health = client.health()
    assert health.ok
    assert health.backend == ("native" if CLUSTER is None else "gateway")
    assert health.version
    client.run("1")
    [today] = client.usage()
    assert today.runs >= 1
    assert today.execs["ok"] >= 1
    assert client.usage("2999-01-01") == []


def test_over_tcp_with_a_key(keyed: tuple[Server, str], monkeypatch: pytest.MonkeyPatch) -> None:
    server, key = keyed
    with Client(server.url, api_key=key) as client:
        assert client.run("6 * 7").text == "42"
    monkeypatch.setenv("BELLJAR_URL", server.url)
    monkeypatch.setenv("BELLJAR_API_KEY", key)
    import belljar

    assert belljar.run("6 * 7").text == "42"
    # A proxy for the world outside is none for this machine.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with Client() as client:
        assert client.health().ok


def test_closing_ends_no_session(server: Server) -> None:
    client = Client(server.url)
    session = client.session("kept")
    client.close()
    with Client(server.url) as other:
        assert other.get_session(session.id).is_alive()
        other.get_session(session.id).stop()
