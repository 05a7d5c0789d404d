"""The examples work, and code that was written for other sandboxes.

All of it with a local server, as users have it, which is started by the first who needs it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from agents import ASK, agent, calls, code, invoke, thread, tool_messages
from servers import REPOSITORY, python_path
from users import User

from belljar import local

EXAMPLES = REPOSITORY / "examples"


@pytest.fixture(scope="module")
def reader(_scratch: None) -> Iterator[User]:
    user = User()
    with pytest.MonkeyPatch.context() as patch:
        user.becomes_us(patch)
        yield user
    user.leave()


@pytest.fixture
def home(reader: User) -> Path:
    """The project of a user of our own, to be in."""
    return reader.project


def run_example(name: str) -> str:
    env = {**os.environ, "PYTHONPATH": python_path()}
    done = subprocess.run([sys.executable, EXAMPLES / name], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def picture_of(said: str) -> bytes:
    link = said.split("Here is the picture: ")[1].split()[0]
    # What opens it goes by the name.
    assert link.startswith("file:///")
    assert link.endswith(".png")
    return Path(urlsplit(link).path).read_bytes()


def test_simple_sandbox(home: Path) -> None:
    said = run_example("simple_sandbox.py")
    assert "1229 primes, the last is 9973" in said
    assert "[(6, 299), (2, 205), (4, 202)]" in said
    assert picture_of(said).startswith(b"\x89PNG")


def test_local_datasets(home: Path) -> None:
    said = run_example("local_datasets.py")
    assert "/data/houses.csv (3.5 KiB, 200 rows" in said
    assert picture_of(said).startswith(b"\x89PNG")
    [session] = (home / "sessions").glob("ses_*")
    assert (session / "artifacts" / "prices.png").exists()
    assert f"Its files are in {session}" in said


def test_api_datasets(home: Path) -> None:
    said = run_example("api_datasets.py")
    assert "houses.csv (3.5 KiB, 200 rows" in said
    assert "max       54.5" in said
    link = said.split("Here they are: ")[1].split()[0]
    assert len(Path(urlsplit(link).path).read_text().splitlines()) == 11


def test_time_travel(home: Path) -> None:
    said = run_example("time_travel.py")
    first, _, rest = said.partition("--- two steps back")
    second, _, third = rest.partition("--- the first branch again")
    assert "| [9, 12, 30]" in first
    assert "| [18, 24, 60]" in first
    assert "| 102" in first
    assert "| 51 three prices" in second
    assert "| 102 [18, 24, 60] three prices, doubled" in third


def test_file_agent(home: Path) -> None:
    said = run_example("file_agent.py")
    assert "FAILED (failures=1)" in said
    assert "| OK" in said.partition("FAILED")[2]
    link = said.split("Here is the archive: ")[1].split()[0]
    with tarfile.open(urlsplit(link).path) as archive:
        assert {"project/test_words.py", "project/words/__init__.py"} <= set(archive.getnames())
    assert "['artifacts', 'data']" in said


def test_no_agent_of_the_examples_is_forgotten() -> None:
    agents = {path.stem for path in EXAMPLES.glob("*.py") if "from agents import" in path.read_text()}
    tests = "".join(path.read_text() for path in Path(__file__).parent.parent.glob("*/test_*.py"))
    assert {name for name in agents if f"def test_{name}(" not in tests} == set()
    assert len(agents) >= 7


def test_examples_come_with_the_package(home: Path, reader: User) -> None:
    module = ["-m", "belljar.examples"]
    listed = reader.python(*module)
    agents = {path.stem: path for path in EXAMPLES.glob("*.py") if "from agents import" in path.read_text()}
    assert {line.split()[0] for line in listed.splitlines() if line} == {*agents, "python"}
    assert "local_datasets    An agent that reads files of a local directory" in listed
    # They are the files themselves, and what is packed of a link is its content.
    package = REPOSITORY / "sdk" / "python" / "src" / "belljar" / "examples"
    for path in [*agents.values(), EXAMPLES / "agents.py", *(EXAMPLES / "data").iterdir()]:
        assert (package / path.relative_to(EXAMPLES)).resolve() == path
    said = reader.python(*module, "local_datasets")
    assert "/data/houses.csv (3.5 KiB, 200 rows" in said
    assert picture_of(said).startswith(b"\x89PNG")
    # As templates, which stay the user's own.
    copies = home / "mine"
    assert "wrote mine/data/houses.csv" in reader.python(*module, "--copy", "mine")
    (copies / "simple_sandbox.py").write_text("print('changed')")
    assert "kept mine/simple_sandbox.py" in reader.python(*module, "--copy", "mine")
    assert reader.python("mine/simple_sandbox.py") == "changed\n"
    reply = reader.run(sys.executable, *module, "nonsense")
    assert reply.returncode == 2
    assert "Traceback" not in reply.stderr


def test_code_written_for_langgraph_sandbox(home: Path) -> None:
    from belljar import (
        Config,
        SessionManager,
        make_code_sandbox_tool,
        make_export_datasets_tool,
        make_list_datasets_tool,
        make_select_dataset_tool,
    )

    config = Config.from_env()
    session_manager = SessionManager(
        image=config.sandbox_image,
        session_storage=config.session_storage,
        dataset_access=config.dataset_access,
        datasets_path=config.datasets_host_ro,
        session_root=config.sessions_root,
        tmpfs_size=config.tmpfs_size_mb,
    )

    def get_session_key() -> str:
        return "my_unique_session_id"

    def my_fetch_function(dataset_id: str) -> bytes:
        return b"x,y\n1,2\n"

    code_tool = make_code_sandbox_tool(
        session_manager=session_manager, session_key_fn=get_session_key, timeout_s=60
    )
    dataset_tool = make_select_dataset_tool(session_manager=session_manager, fetch_fn=my_fetch_function)
    export_tool = make_export_datasets_tool(session_manager=session_manager, session_key_fn=get_session_key)
    list_tool = make_list_datasets_tool(session_manager=session_manager, session_key_fn=get_session_key)

    # The tool that selects datasets has no function for its key, and brings them to where the code is.
    graph = agent(
        [code_tool, dataset_tool, export_tool, list_tool],
        calls(("select_dataset", {"dataset_id": "some.csv"})),
        code("total = sum(map(int, open('/session/data/some.csv').read().split()[1].split(',')))"),
        code("open('/session/data/total.txt', 'w').write(str(total)); total"),
        calls(("list_datasets", {})),
        calls(("export_datasets", {"names": ["total.txt"]})),
        "done",
    )
    state = graph.invoke(ASK, thread("another"))
    said = [message.text for message in tool_messages(state)]
    assert {message.artifact["session_key"] for message in tool_messages(state)} == {"my_unique_session_id"}
    assert said[2] == "[result]\n3"
    assert "total.txt" in said[3]
    assert "[exported]" in said[4]
    assert session_manager.stop("my_unique_session_id")


def test_six_modes(home: Path) -> None:
    """Each in its words: `SANDBOX_IMAGE` and all."""
    from belljar import Config, SessionManager, make_code_sandbox_tool

    for storage in ("TMPFS", "BIND"):
        for access in ("NONE", "LOCAL_RO", "API"):
            (home / "mode.env").write_text(
                f"SESSION_STORAGE={storage}\nDATASET_ACCESS={access}\nSESSIONS_ROOT=./sessions\n"
                f"DATASETS_HOST_RO={EXAMPLES / 'data'}\nSANDBOX_IMAGE=sandbox:latest\nTMPFS_SIZE_MB=16\n"
            )
            config = Config.from_env("mode.env")
            manager = SessionManager.from_config(config)
            tool = make_code_sandbox_tool(manager)
            answer = invoke(tool, code="import os; open('/session/artifacts/mode.txt', 'w'); os.listdir('/data')")
            info = manager.start(manager.default_key).info
            assert (info.storage, info.datasets) == (storage, access)
            if access == "LOCAL_RO":
                assert "['houses.csv']" in answer.text
            if storage == "BIND":
                assert (home / "sessions" / info.id / "artifacts" / "mode.txt").exists()
            assert manager.stop(manager.default_key)


def test_a_local_server_with_directories_of_its_own_is_started_again(home: Path) -> None:
    from belljar import SessionManager

    manager = SessionManager(session_storage="BIND", session_root="sessions")
    session = manager.start("kept")
    assert session.info.directory == str(home / "sessions" / session.id)
    manager.exec("kept", "x = 41")
    pid = local._pid_of(local.LocalServer({"SESSIONS_ROOT": str(home / "sessions")}).socket)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    result = manager.exec("kept", "x + 1")
    assert (result.text, result.notice, result.session_id) == ("42", None, session.id)
    assert manager.stop("kept")
