"""Settings, and sessions by one's own keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers import Server
from users import User

from belljar import Config, InvalidRequest, SessionManager, local
from belljar.config import parse_env

NAMES = (
    "SESSION_STORAGE", "DATASET_ACCESS", "SESSIONS_ROOT", "BLOBSTORE_DIR", "ARTIFACTS_DB", "DATASETS_HOST_RO",
    "SANDBOX_IMAGE", "TMPFS_SIZE_MB", "IDLE_HIBERNATE_SEC",
)  # fmt: skip


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No settings, and no .env."""
    monkeypatch.chdir(tmp_path)
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_settings_by_default() -> None:
    config = Config.from_env()
    assert (config.mode, config.tmpfs_size_mb, config.sessions_root) == ("TMPFS_API", 1024, Path("sessions"))
    assert (config.sandbox_image, config.datasets_host_ro, config.url) == (None, None, None)


def test_settings_from_files_and_the_environment(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nowhere / ".env").write_text(
        "# how sessions are kept\n"
        "export SESSION_STORAGE=bind\n"
        'DATASET_ACCESS="LOCAL_RO"  # with a comment\n'
        "DATASETS_HOST_RO=./data # here\n"
        "TMPFS_SIZE_MB=64\n"
        "SANDBOX_IMAGE=\n"
        "BELLJAR_API_KEY=bj_secret\n"
    )
    config = Config.from_env()
    assert (config.mode, config.datasets_host_ro, config.tmpfs_size_mb) == ("BIND_LOCAL", Path("data"), 64)
    assert config.sandbox_image is None and "secret" not in repr(config)

    monkeypatch.setenv("DATASET_ACCESS", "API_TMPFS")
    assert Config.from_env().mode == "BIND_API", "the environment wins"
    (nowhere / "other.env").write_text("SESSION_STORAGE=TMPFS\nDATASET_ACCESS=NONE\n")
    assert Config.from_env(nowhere / "other.env").mode == "TMPFS_API"
    monkeypatch.delenv("DATASET_ACCESS")
    assert Config.from_env("other.env").mode == "TMPFS_NONE"
    with pytest.raises(FileNotFoundError):
        Config.from_env("none.env")


@pytest.mark.parametrize(
    "wrong", ["SESSION_STORAGE=RAM", "DATASET_ACCESS=LOCAL_RO", "TMPFS_SIZE_MB=1G", "just words", "1A=2"]
)
def test_settings_that_make_no_sense(nowhere: Path, wrong: str) -> None:
    (nowhere / ".env").write_text(wrong)
    with pytest.raises(InvalidRequest):
        Config.from_env()


def test_quotes() -> None:
    text = "A='x # y'\nB=\"1\"\nC=a#b\nD=a #b\nE=\n#F=1\nG=a=b\n"
    assert parse_env(text) == {"A": "x # y", "B": "1", "C": "a#b", "D": "a", "G": "a=b"}


def test_start_exec_stop(server: Server) -> None:
    manager = SessionManager(session_storage="TMPFS", dataset_access="NONE", tmpfs_size=16, url=server.url)
    session = manager.start("conversation-7")
    assert session.info.limits.tmpfs == 16 << 20 and session.info.storage == "TMPFS"
    manager.exec("conversation-7", "x = 41")
    result = manager.exec("conversation-7", "print('hi'); x + 1", timeout=5)
    assert (result.text, result.stdout, result.session_id) == ("42", "hi\n", session.id)
    assert result.notice is None and result.session_key == "conversation-7"
    assert manager.stop("conversation-7") and not manager.stop("conversation-7")
    assert "gone" in (manager.exec("conversation-7", "1").notice or "")
    assert manager.stop("conversation-7")


async def test_the_same_with_await(server: Server) -> None:
    manager = SessionManager(url=server.url)
    await manager.astart("a")
    await manager.aexec("a", "x = 1")
    assert (await manager.aexec("a", "x")).text == "1"
    assert (await manager.arun("1 + 1")).text == "2"
    assert await manager.astop("a") and not await manager.astop("a")
    await manager.aclose()


def test_programs_are_kept_apart_by_a_prefix(server: Server) -> None:
    one, two = (SessionManager(url=server.url, key_prefix=prefix) for prefix in ("one-", "two-"))
    one.exec("1", "x = 1")
    assert two.exec("1", "'x' in globals()").text == "False"
    assert one.exec("1", "x").text == "1"
    assert [manager.stop("1") for manager in (one, two)] == [True, True]


def test_no_conversation_is_called_so_that_it_is_anothers(server: Server) -> None:
    """Users name conversations, and some know the prefixes of others."""
    alike = [
        ("app", "1-alice"), ("app1", "-alice"), ("", "app1-alice"),
        ("a", "b::c"), ("a::b", "c"), ("", "a::b::c"), ("a:", ":b::c"), ("a%3A", "b"), ("a:", "b"), ("", "::a"),
    ]  # fmt: skip
    managers = [(SessionManager(url=server.url, key_prefix=prefix), key) for prefix, key in alike]
    assert len({manager._full(key) for manager, key in managers}) == len(alike)
    (one, key), (two, other) = managers[:2]
    one.exec(key, "secret = 1")
    assert two.exec(other, "'secret' in globals()").text == "False"
    assert one.exec(key, "secret").text == "1"
    assert [manager.stop(key) for manager, key in managers[:2]] == [True, True]
    # Without a prefix a key is what it always was.
    assert SessionManager(url=server.url)._full("conversation-7") == "conversation-7"


def test_settings_of_a_local_server(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    user.becomes_us(monkeypatch)
    (user.project / ".env").write_text(
        "DATASET_ACCESS=NONE\nBLOBSTORE_DIR=./blobs\nARTIFACTS_DB=./known.db\nIDLE_HIBERNATE_SEC=900\n"
    )
    manager = SessionManager.from_config(Config.from_env())
    result = manager.exec("a", "open('/session/artifacts/a.txt', 'w').write('a'); None")
    assert Path(result.artifact_map["/session/artifacts/a.txt"]).is_relative_to(user.project / "blobs")
    assert (user.project / "known.db").exists()
    [socket] = user.servers()
    environment = Path(f"/proc/{local._pid_of(socket)}/environ").read_bytes().split(b"\0")
    assert b"IDLE_HIBERNATE_SEC=900" in environment
    assert manager.stop("a")


def test_directories_are_the_servers_own(server: Server, nowhere: Path) -> None:
    with pytest.warns(UserWarning, match="SESSIONS_ROOT of a server that runs already"):
        SessionManager(session_storage="BIND", session_root=nowhere / "sessions", url=server.url)
    with pytest.raises(InvalidRequest, match="session_storage is `RAM`"):
        SessionManager(session_storage="RAM")
