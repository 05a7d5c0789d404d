from __future__ import annotations

import json
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from servers import CLUSTER, Gateway, Leftovers, Server
from users import User

from belljar import AsyncClient, Client, LimitOptions, Session, SessionManager

# Enough for a kernel, and cheap for many sessions.
SMALL: LimitOptions = {"memory": "96M", "pids": 32, "tmpfs": "8M"}


@pytest.fixture(scope="session", autouse=True)
def _scratch() -> Iterator[None]:
    """One directory for everything; fails if something is left at the end."""
    left = Leftovers()
    # The names of pytest's own directories are too long for sockets.
    before, tempfile.tempdir = tempfile.tempdir, str(left.scratch)
    yield
    tempfile.tempdir = before
    assert left.found() == []


@pytest.fixture(scope="session", autouse=True)
def _environment(_scratch: None) -> Iterator[None]:
    """Removes variables of the caller's environment that select another server."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name in ("BELLJAR_URL", "BELLJAR_API_KEY", "SANDBOX_API_URL"):
                patch.delenv(name)
        if CLUSTER is not None:
            patch.setenv("BELLJAR_API_KEY", json.loads(Path(CLUSTER).read_text())["key"])
        yield


@pytest.fixture
def short_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture
def user() -> Iterator[User]:
    made = User()
    yield made
    made.leave()


# The fixtures that start a server, or a gateway of the cluster that is tested.
SERVERS = {"server", "mortal", "keyed", "place"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out what has nothing to do with the cluster that is tested."""
    if CLUSTER is None:
        return
    others = [item for item in items if SERVERS.isdisjoint(getattr(item, "fixturenames", ()))]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in others]


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("single_server"):
        if CLUSTER is not None:
            pytest.skip(marker.args[0])


def make_server(*, tcp: bool = False) -> Server:
    directory = Path(tempfile.mkdtemp(prefix="s-"))
    return Server(directory, tcp=tcp) if CLUSTER is None else Gateway(directory)


@pytest.fixture(scope="session")
def server(_environment: None) -> Iterator[Server]:
    """A server, or a gateway whose key is in the environment."""
    started = make_server().start()
    yield started
    started.stop()


@pytest.fixture
def mortal(_environment: None) -> Iterator[Server]:
    """A server to be killed."""
    started = make_server().start()
    yield started
    started.stop()


@pytest.fixture(scope="session")
def _keyed(_scratch: None) -> Iterator[tuple[Server, str]]:
    made = make_server(tcp=True)
    key = made.command("key", "create", "--name", "test", "--tenant", "small", "--max-sessions", "1")
    made.start()
    yield made, key
    made.stop()


@pytest.fixture
def keyed(_keyed: tuple[Server, str], monkeypatch: pytest.MonkeyPatch) -> tuple[Server, str]:
    """A server over TCP that needs a key, and a key with a quota of one session."""
    monkeypatch.delenv("BELLJAR_API_KEY", raising=False)
    return _keyed


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


@pytest.fixture
async def aclient(server: Server) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url) as client:
        yield client


@pytest.fixture
def session(client: Client) -> Iterator[Session]:
    with client.session() as session:
        yield session


@pytest.fixture
def manager(server: Server) -> SessionManager:
    """A manager with a unique prefix for its keys."""
    return SessionManager(dataset_access="API", url=server.url, key_prefix=f"{os.urandom(4).hex()}-")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """`make test` prints and counts skipped tests at its end."""
    record = os.environ.get("SKIPPED_TESTS_FILE")
    if record and report.skipped and isinstance(report.longrepr, tuple):
        with open(record, "a") as file:
            file.write(f"{report.nodeid}: {report.longrepr[2].removeprefix('Skipped: ')}\n")
