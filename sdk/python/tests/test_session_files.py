"""`session.files`: the files in a session, as a program inside sees them."""

from __future__ import annotations

import io

import pytest

from belljar import AsyncClient, Client, Conflict, InvalidRequest, NotFound, Session


def test_files_come_and_go(session: Session) -> None:
    files = session.files
    written = files.write("notes/today.txt", b"hello")
    assert (written.size, written.is_file) == (5, True)
    assert session.run_command("cat notes/today.txt").stdout == "hello"
    assert files.read("notes/today.txt") == files.read("/session/notes/today.txt") == b"hello"
    assert files.stat("notes").is_directory

    assert files.mkdir("notes/old").is_directory
    assert files.mkdir("notes/old").is_directory, "once more is no error"
    assert files.move("notes/today.txt", "notes/old/then.txt").size == 5
    assert [file.path for file in files.list("notes", recursive=True).files] == ["old", "old/then.txt"]
    assert "notes" in [file.path for file in files.list().files]

    with pytest.raises(Conflict):
        files.delete("notes")
    files.delete("notes", recursive=True)
    with pytest.raises(NotFound):
        files.stat("notes")


def test_parts_of_files(session: Session) -> None:
    session.files.write("digits", b"0123456789")
    read = session.files.read
    assert read("digits", start=7) == b"789"
    assert read("digits", start=2, end=4) == b"23"
    assert read("digits", end=99) == b"0123456789"
    assert read("digits", start=10) == read("digits", start=3, end=3) == b""
    with pytest.raises(InvalidRequest):
        read("digits", start=3, end=2)


def test_names_are_taken_as_they_are(session: Session) -> None:
    for name in ("a b?c#d%2Fe", "ünï", "...", "x/../y", "/tmp//z"):
        session.files.write(name, name.encode())
        assert session.files.read(name) == name.encode()
    assert session.run_command("cat y").stdout == "x/../y"


def test_what_is_sent(session: Session, tmp_path_factory: pytest.TempPathFactory) -> None:
    local = tmp_path_factory.mktemp("sent") / "large"
    local.write_bytes(bytes(3 << 20))
    heard: list[tuple[int, int | None]] = []
    assert session.files.write("large", local, progress=lambda *told: heard.append(told)).size == 3 << 20
    assert heard[-1] == (3 << 20, 3 << 20)
    assert session.files.write("empty", b"").size == 0
    assert session.files.write("piped", io.BytesIO(b"abc")).size == 3


async def test_the_same_with_await(aclient: AsyncClient) -> None:
    async with aclient.session() as session:
        await session.files.write("a", b"1")
        assert await session.files.read("a") == b"1"
        assert [file.path for file in (await session.files.list()).files if file.is_file] == ["a"]
        await session.files.delete("a")


def test_a_dead_session_has_no_files(client: Client) -> None:
    from belljar import SessionEnded

    session = client.session()
    session.stop()
    with pytest.raises(SessionEnded):
        session.files.read("a")
