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
    received: list[tuple[int, int | None]] = []
    assert session.files.write("large", local, progress=lambda *reply: received.append(reply)).size == 3 << 20
    assert received[-1] == (3 << 20, 3 << 20)
    assert session.files.write("empty", b"").size == 0
    assert session.files.write("piped", io.BytesIO(b"abc")).size == 3


def test_files_grow_and_are_copied(session: Session) -> None:
    files = session.files
    assert files.append("log/today", b"one\n").size == 4
    assert files.append("log/today", io.BytesIO(b"two\n")).size == 8
    assert files.write("bin/tool", b"#!/bin/sh\necho works\n", mode=0o755).mode == "755"
    assert session.run_command("bin/tool").stdout == "works\n"
    assert files.append("log/new", b"", mode=0o600).mode == "600"
    assert files.copy("bin", "copied").is_directory
    assert files.copy("log/today", "copied/today").size == 8
    assert session.run_command("copied/tool; cat copied/today").stdout == "works\none\ntwo\n"
    with pytest.raises(NotFound):
        files.copy("none", "x")
    with pytest.raises(InvalidRequest):
        files.write("x", b"", mode=0o4755)


def test_files_are_found_by_pattern(session: Session) -> None:
    session.run_command("mkdir -p p/src p/.git; cd p; touch a.py b.txt .env src/c.py .git/d.py")

    def found(**how: bool | str) -> list[str]:
        return [file.path for file in session.files.list("p", **how).files]  # type: ignore[arg-type]

    assert found(hidden=False) == ["a.py", "b.txt", "src"]
    assert found(glob="*.py") == ["a.py"]
    assert found(glob="**/*.py") == [".git/d.py", "a.py", "src/c.py"]
    assert found(glob="**/*.py", hidden=False) == ["a.py", "src/c.py"]
    with pytest.raises(InvalidRequest):
        found(glob="[a")


def test_large_files_come_in_pieces(session: Session) -> None:
    session.run_command("head -c 3000000 /dev/zero | tr '\\0' x > large")
    pieces = list(session.files.chunks("large"))
    assert len(pieces) > 1
    assert sum(map(len, pieces)) == 3_000_000
    assert sum(map(len, session.files.chunks("large", start=1_000_000, end=2_500_000))) == 1_500_000
    assert b"".join(session.files.chunks("large", start=2_999_990)) == b"x" * 10
    assert list(session.files.chunks("large", start=9_999_999)) == list(session.files.chunks("large", end=0)) == []
    with pytest.raises(NotFound):
        list(session.files.chunks("none"))


def test_changes_are_told_as_they_happen(session: Session) -> None:
    session.files.mkdir("w/sub")
    with session.files.watch("w", recursive=True) as changes:
        session.run_command("cd w; echo 1 > a; echo 2 > sub/b; rm a; cd ..; rm -r w")
        seen = [(change.kind, change.path) for change in changes]
    for reply in [("created", "a"), ("modified", "a"), ("removed", "a"), ("created", "sub/b"), ("removed", "sub")]:
        assert reply in seen, seen
    session.files.mkdir("other")
    with session.files.watch("other") as changes:
        session.files.mkdir("other/new")
        change = next(changes)
        assert (change.kind, change.path, change.directory) == ("created", "new", True)
    assert list(changes) == [], "closed, it is over"
    with pytest.raises(NotFound):
        next(session.files.watch("none"))


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "zip"])
def test_directories_travel_as_archives(
    session: Session, ending: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    session.run_command("mkdir -p t/a; echo 1 > t/a/f; ln -s a/f t/l; echo 'echo works' > t/run; chmod 755 t/run")
    local = tmp_path_factory.mktemp("archives") / f"t.{ending}"
    size = session.files.download_archive("t", local)
    assert local.stat().st_size == size > 0
    unpacked = session.files.upload_archive("back", local)
    assert (unpacked.entries, unpacked.skipped) == (4, 0)
    assert session.run_command("diff -r t back && back/run && readlink back/l").stdout == "works\na/f\n"

    held = io.BytesIO()
    session.files.download_archive("t", held, format="tar")
    assert session.files.upload_archive("again", held.getvalue(), format="tar").entries == 4
    with pytest.raises(InvalidRequest, match="format"):
        session.files.upload_archive("x", held.getvalue())
    with pytest.raises(InvalidRequest):
        session.files.upload_archive("x", b"no archive", format="zip")
    missing = local.with_name(f"none.{ending}")
    with pytest.raises(NotFound):
        session.files.download_archive("none", missing)
    assert [path.name for path in local.parent.iterdir()] == [local.name], "nothing is left of what failed"


async def test_the_same_with_await(aclient: AsyncClient) -> None:
    async with aclient.session() as session:
        await session.files.write("a", b"1")
        assert await session.files.read("a") == b"1"
        assert [file.path for file in (await session.files.list()).files if file.is_file] == ["a"]
        await session.files.delete("a")
        await session.files.append("log", b"1")
        await session.files.copy("log", "log2")
        async with session.files.watch() as changes:
            await session.files.mkdir("new")
            assert (await changes.__anext__()).path == "new"
        assert b"".join([chunk async for chunk in session.files.pack(format="tar")])


def test_a_dead_session_has_no_files(client: Client) -> None:
    from belljar import SessionEnded

    session = client.session()
    session.stop()
    with pytest.raises(SessionEnded):
        session.files.read("a")
