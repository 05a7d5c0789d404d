"""Settings, and sessions by one's own keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from servers import Server
from users import User

from belljar import Client, Config, InvalidRequest, LocalServerError, SessionManager, local

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
    assert (config.sandbox_image, config.idle_hibernate_sec, config.url) == ("sandbox:latest", 900, "local")
    assert (config.blobstore_dir, config.artifacts_db) == (Path("blobstore"), Path("artifacts.db"))
    # Only one of the modes has such a directory, and only servers of others want a key.
    assert (config.datasets_host_ro, config.api_key) == (None, None)
    assert config == Config()


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
    assert config.sandbox_image == "sandbox:latest"
    assert "secret" not in repr(config)

    monkeypatch.setenv("DATASET_ACCESS", "API_TMPFS")
    assert Config.from_env().mode == "BIND_API", "the environment wins"
    monkeypatch.setenv("TMPFS_SIZE_MB", "")
    assert Config.from_env().tmpfs_size_mb == 1024, "also where it says nothing"
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


def test_start_exec_stop(server: Server) -> None:
    manager = SessionManager(session_storage="TMPFS", dataset_access="NONE", tmpfs_size=16, url=server.url)
    session = manager.start("conversation-7")
    assert session.info.limits.tmpfs == 16 << 20
    assert session.info.storage == "TMPFS"
    manager.exec("conversation-7", "x = 41")
    result = manager.exec("conversation-7", "print('hi'); x + 1", timeout=5)
    assert (result.text, result.stdout, result.session_id) == ("42", "hi\n", session.id)
    assert result.notice is None
    assert result.session_key == "conversation-7"
    assert manager.stop("conversation-7")
    assert not manager.stop("conversation-7")
    assert "gone" in (manager.exec("conversation-7", "1").notice or "")
    assert manager.stop("conversation-7")


async def test_the_same_with_await(server: Server) -> None:
    manager = SessionManager(url=server.url)
    await manager.astart("a")
    await manager.aexec("a", "x = 1")
    assert (await manager.aexec("a", "x")).text == "1"
    assert (await manager.arun("1 + 1")).text == "2"
    assert await manager.astop("a")
    assert not await manager.astop("a")
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
    assert len({manager._full_key(key) for manager, key in managers}) == len(alike)
    (one, key), (two, other) = managers[:2]
    one.exec(key, "secret = 1")
    assert two.exec(other, "'secret' in globals()").text == "False"
    assert one.exec(key, "secret").text == "1"
    assert [manager.stop(key) for manager, key in managers[:2]] == [True, True]
    # Without a prefix a key is what it always was.
    assert SessionManager(url=server.url)._full_key("conversation-7") == "conversation-7"


def test_a_size_of_files_in_memory_that_is_chosen_is_had(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    megabytes = "import os; s = os.statvfs('/session'); print(s.f_blocks * s.f_frsize >> 20)"

    def limits(config: Config) -> tuple[str, int]:
        manager = SessionManager.from_config(config, url=server.url)
        opened = manager.open("sized")
        found = opened.session.run_code(megabytes).stdout.strip(), opened.session.info.limits.memory >> 20
        opened.session.remove()
        return found

    assert limits(Config(dataset_access="NONE")) == ("384", 512), "nobody chose"
    assert limits(Config(dataset_access="NONE", tmpfs_size_mb=1024)) == ("1024", 1366)
    monkeypatch.setenv("TMPFS_SIZE_MB", "1024")
    assert limits(Config.from_env()) == ("1024", 1366)
    with pytest.raises(InvalidRequest, match="1366 MiB of memory"):
        SessionManager(tmpfs_size=1024, memory="512M", url=server.url).open("refused")


async def test_conversations_go_on_with_changed_options(server: Server) -> None:
    before = SessionManager(session_storage="BIND", url=server.url, key_prefix="changed")
    before.exec("living", "x = 41")
    before.exec("stopped", "open('/session/a', 'w').write('kept')")
    before.stop("stopped")
    after = SessionManager(session_storage="BIND", url=server.url, key_prefix="changed", memory="640M", env={"A": "b"})
    living = after.exec("living", "x + 1")
    assert living.text == "42"
    assert living.notice is not None
    assert "limits.memory" in living.notice
    assert "until it is stopped" in living.notice
    assert after.exec("living", "x").notice is None, "said once"
    assert (await after.aexec("living", "x")).text == "41"
    stopped = after.exec("stopped", "import os; os.environ['A'], open('/session/a').read()")
    assert stopped.text == "('b', 'kept')"
    assert after.open("stopped").session.info.limits.memory == 640 << 20
    after.stop("living")
    assert (await after.aopen("living")).session.info.limits.memory == 640 << 20
    assert after.remove("living")
    assert not after.remove("living")
    assert await after.aremove("stopped")
    assert not await after.aremove("stopped")


def test_settings_of_a_local_server(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    user.becomes_us(monkeypatch)
    (user.project / ".env").write_text(
        "DATASET_ACCESS=NONE\nBLOBSTORE_DIR=./blobs\nARTIFACTS_DB=./known.db\nIDLE_HIBERNATE_SEC=900\n"
    )
    manager = SessionManager.from_config(Config.from_env())
    result = manager.exec("a", "open('/session/artifacts/a.txt', 'w').write('a'); None")
    shown = Path(result.artifact_map["/session/artifacts/a.txt"])
    assert shown == user.project / "sessions" / str(result.session_id) / "artifacts" / "a.txt"
    [blob] = [path for path in (user.project / "blobs").rglob("*") if path.is_file() and path.samefile(shown)]
    assert blob.name == result.artifacts[0].sha256
    assert (user.project / "known.db").exists()
    [socket] = user.servers()
    environment = Path(f"/proc/{local._pid_of(socket)}/environ").read_bytes().split(b"\0")
    assert b"IDLE_HIBERNATE_SEC=900" in environment
    assert manager.stop("a")


def test_directories_are_the_servers_own(server: Server, nowhere: Path) -> None:
    with pytest.warns(UserWarning, match="the server has its own SESSIONS_ROOT"):
        SessionManager(session_storage="BIND", session_root=nowhere / "sessions", url=server.url)
    with pytest.raises(InvalidRequest, match="session_storage is `RAM`"):
        SessionManager(session_storage="RAM")


def test_tools_follow_the_environment_without_being_told(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the quick start of langgraph-sandbox, which hands on only some of its settings."""
    user.becomes_us(monkeypatch)
    monkeypatch.setenv("BLOBSTORE_DIR", "blobs")
    (user.project / ".env").write_text("ARTIFACTS_DB=known.db # here\nSESSION_STORAGE='BIND'\nSESSIONS_ROOT=kept\n")
    manager = SessionManager()
    assert (manager.session_storage, manager.dataset_access) == ("BIND", None)
    result = manager.exec("a", "open('/session/artifacts/a.txt', 'w').write('a'); None")
    assert (user.project / "kept" / str(result.session_id) / "artifacts" / "a.txt").read_text() == "a"
    assert (user.project / "blobs").is_dir()
    assert (user.project / "known.db").exists()
    # A client, the command line and the same settings as arguments find the same server.
    assert [session.key for session in Client().sessions()] == ["a"]
    reply = user.run(user.env["BELLJAR_BINARY"], "session", "list", env={"BLOBSTORE_DIR": "./x/../blobs"})
    assert str(result.session_id) in reply.stdout, reply.stderr
    monkeypatch.delenv("BLOBSTORE_DIR")
    (user.project / ".env").unlink()
    same = SessionManager(session_storage="BIND", session_root="kept", blobstore_dir="blobs", artifacts_db="known.db")
    assert same.client.url == manager.client.url
    assert len(user.servers()) == 1
    assert same.stop("a")


def test_artifacts_of_runs_are_left_where_the_program_is(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    user.becomes_us(monkeypatch)
    manager = SessionManager()
    code = "import os; os.mkdir('/work/artifacts/sub'); open('/work/artifacts/sub/a b.txt', 'w').write('left'); None"
    result = manager.run(code)
    path = user.project / "outputs" / result.exec_id / "sub" / "a b.txt"
    assert result.artifact_map == {"/work/artifacts/sub/a b.txt": str(path)}
    assert path.read_text() == "left"
    assert result.artifacts[0].host_path == str(path)
    # A file of the user's own: what is done to it is done to no other.
    path.write_text("changed")
    assert manager.client.artifacts.read(result.artifacts[0]) == b"left"
    # Where nothing can be written, it is where the server has it.
    (user.project / "full").write_text("no directory")
    monkeypatch.setenv("BELLJAR_OUTPUTS_DIR", "full")
    kept = Path(SessionManager().run(code).artifact_map["/work/artifacts/sub/a b.txt"])
    assert kept.read_text() == "left"
    assert not kept.is_relative_to(user.project)


async def test_the_same_with_await_and_another_directory(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    user.becomes_us(monkeypatch)
    (user.project / ".env").write_text("BELLJAR_OUTPUTS_DIR=./made # below the project\n")
    manager = SessionManager()
    result = await manager.arun("open('/work/artifacts/a.txt', 'w').write('left'); None")
    path = user.project / "made" / result.exec_id / "a.txt"
    assert result.artifact_map == {"/work/artifacts/a.txt": str(path)}
    assert path.read_text() == "left"
    await manager.aclose()


def test_a_project_whose_settings_change_has_its_artifacts_still(user: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers cannot have the same ones: that of the settings before ends, unless it has sessions."""
    user.becomes_us(monkeypatch)
    before, now = Config(dataset_access="NONE"), Config(dataset_access="LOCAL_RO", datasets_host_ro=user.project)
    first = SessionManager.from_config(before)
    kept = first.exec("a", "open('/session/artifacts/a.txt', 'w').write('kept'); None").artifacts[0]
    with pytest.raises(LocalServerError, match="another server uses it"):
        SessionManager.from_config(now).exec("b", "1")
    assert first.stop("a")
    with SessionManager.from_config(now) as second:
        assert second.client.artifacts.read(kept) == b"kept"
