"""Artifacts coming out, datasets going in."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import CLUSTER, CuttingProxy, Server

from belljar import Artifact, Client, Conflict, Forbidden, IntegrityError, InvalidRequest, NotFound, Session

SIZE = 3_000_000


@pytest.fixture
def left(session: Session) -> Artifact:
    code = f"import hashlib\nopen('/session/artifacts/big.bin', 'wb').write((b'0123456789' * {SIZE // 10}))"
    [artifact] = session.run_code(code).artifacts
    return artifact


CONTENT = b"0123456789" * (SIZE // 10)


def test_artifacts_are_listed_and_forgotten(client: Client, session: Session) -> None:
    for name in "abc":
        session.run_code(f"open('/session/artifacts/{name}', 'w').write('{name}')", exec_id=f"exec-{name}")
    assert [artifact.name for artifact in session.artifacts.list()] == ["c", "b", "a"]
    assert [artifact.name for artifact in session.artifacts.list(limit=2)] == ["c", "b"]
    assert [artifact.name for artifact in session.artifacts.list(exec_id="exec-b")] == ["b"]
    found = session.artifacts.find("b")
    assert found.id is not None
    assert session.artifacts.get(found.id).sha256 == hashlib.sha256(b"b").hexdigest()
    assert found.id in [artifact.id for artifact in client.artifacts.list()]
    session.artifacts.delete(found)
    with pytest.raises(NotFound):
        session.artifacts.get(found.id)
    with pytest.raises(NotFound, match="no artifact called `b`"):
        session.artifacts.find("b")


def test_content_whole_in_parts_and_as_a_file(session: Session, left: Artifact) -> None:
    assert session.artifacts.read(left) == CONTENT
    assert session.artifacts.read(left, start=5, end=15) == b"5678901234"
    assert session.artifacts.read(left, start=SIZE - 3) == b"789"
    assert session.artifacts.read(left, start=SIZE + 3) == b""
    assert session.artifacts.open(left).read(3) == b"012"
    assert b"".join(session.artifacts.chunks(left)) == CONTENT
    with pytest.raises(InvalidRequest):
        session.artifacts.read(left, start=5, end=4)


def test_an_empty_artifact(session: Session, tmp_path: Path) -> None:
    [artifact] = session.run_code("open('/session/artifacts/empty', 'w').close()").artifacts
    assert session.artifacts.read(artifact) == b""
    assert session.artifacts.download(artifact, tmp_path / "e").read_bytes() == b""


def test_downloads_show_their_progress(session: Session, left: Artifact, tmp_path: Path) -> None:
    progress_calls: list[tuple[int, int | None]] = []
    path = session.artifacts.download(left, tmp_path, progress=lambda done, total: progress_calls.append((done, total)))
    assert path == tmp_path / "big.bin"
    assert path.read_bytes() == CONTENT
    assert progress_calls[-1] == (SIZE, SIZE)
    assert len(progress_calls) >= 3
    assert progress_calls == sorted(progress_calls)
    assert os.listdir(tmp_path) == ["big.bin"]


def test_a_download_survives_a_bad_line(server: Server, left: Artifact, short_path: Path, tmp_path: Path) -> None:
    line = CuttingProxy(server, short_path / "bad")
    try:
        with Client(line.url) as client:
            line.cuts = [1_200_000, 700, 1_200_000]
            assert client.artifacts.download(left, tmp_path / "a").read_bytes() == CONTENT
            assert not line.cuts
    finally:
        line.close()


def test_a_download_is_gone_on_with(server: Server, left: Artifact, short_path: Path, tmp_path: Path) -> None:
    line = CuttingProxy(server, short_path / "bad")
    try:
        with Client(line.url, patience=0) as impatient:
            line.cuts = [1_500_000]
            with pytest.raises(Exception, match="connection"):
                impatient.artifacts.download(left, tmp_path / "a")
        [part] = tmp_path.iterdir()
        assert part.name.endswith(".part")
        assert part.stat().st_size >= 1 << 20
        progress_calls: list[int] = []
        with Client(server.url) as client:
            path = client.artifacts.download(left, tmp_path / "a", progress=lambda done, _: progress_calls.append(done))
        assert path.read_bytes() == CONTENT
        assert progress_calls[0] > 1 << 20
        assert len(list(tmp_path.iterdir())) == 1
    finally:
        line.close()


def test_what_is_damaged_is_not_taken(session: Session, left: Artifact, tmp_path: Path) -> None:
    lied = left.model_copy(update={"sha256": "0" * 64})
    with pytest.raises(IntegrityError, match="does not match its hash"):
        session.artifacts.download(lied, tmp_path / "a")
    with pytest.raises(IntegrityError):
        session.artifacts.read(lied)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../../escaped", "a/b", "..", "/etc/passwd"])
def test_names_of_artifacts_lead_nowhere(session: Session, left: Artifact, tmp_path: Path, name: str) -> None:
    below = tmp_path / "x" / "y"
    below.mkdir(parents=True)
    path = session.artifacts.download(left.model_copy(update={"name": name}), below)
    assert path.parent == below
    assert path.read_bytes() == CONTENT


def test_links_need_no_key(keyed: tuple[Server, str]) -> None:
    import httpx

    server, key = keyed
    with Client(server.url, api_key=key) as client:
        [artifact] = client.run("open('/work/artifacts/a', 'w').write('free')").artifacts
        assert artifact.url is not None
        assert artifact.url.startswith(server.url)
        assert httpx.get(client.artifacts.url(artifact).url).text == "free"
        assert client.artifacts.read(artifact) == b"free"
        assert httpx.get(artifact.url + "x").status_code == 403
    assert issubclass(Forbidden, Exception)


@pytest.fixture
def staging(client: Client) -> Iterator[Session]:
    with client.session(datasets="API") as session:
        yield session


def test_datasets_from_paths_bytes_and_files(staging: Session, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    by_path = staging.datasets.upload(tmp_path / "a.csv")
    assert (by_path.name, by_path.path, by_path.status) == ("a.csv", "/session/data/a.csv", "LOADED")
    assert staging.datasets.upload(b"raw", "in/folder ü.bin").path == "/session/data/in/folder ü.bin"
    with open(tmp_path / "a.csv", "rb") as file:
        file.read(4)
        staging.datasets.upload(file, "rest.csv")

    class Pipe(io.RawIOBase):
        """Something that cannot be read twice."""

        def __init__(self) -> None:
            self.chunks = [b"flow", b"ing"]

        def readable(self) -> bool:
            return True

        def read(self, size: int = -1) -> bytes:
            return self.chunks.pop(0) if self.chunks else b""

    staging.datasets.upload(Pipe(), "pipe.txt")  # type: ignore[arg-type]
    said = staging.run_command("cat a.csv rest.csv pipe.txt 'in/folder ü.bin'", cwd="/session/data").stdout
    assert said == "x,y\n1,2\n1,2\nflowingraw"
    listing = staging.datasets.list()
    assert listing.access == "API"
    assert {dataset.name for dataset in listing.datasets} >= {"a.csv", "pipe.txt"}
    [csv] = [dataset for dataset in listing.datasets if dataset.name == "a.csv"]
    assert csv.format == "csv"
    assert csv.columns is not None
    with pytest.raises(InvalidRequest, match="needs a `name`"):
        staging.datasets.upload(b"")
    with pytest.raises(InvalidRequest, match="cannot send a int"):
        staging.datasets.upload(5)  # type: ignore[arg-type]


def test_content_that_is_known_is_not_sent_again(client: Client, staging: Session) -> None:
    content = os.urandom(2_500_000)
    progress_calls: list[tuple[int, int | None]] = []
    first = staging.datasets.upload(content, "big", progress=lambda done, total: progress_calls.append((done, total)))
    assert progress_calls[-1] == (len(content), len(content))
    assert len(progress_calls) >= 3
    assert not first.cached
    progress_calls.clear()
    with client.session(datasets="API") as other:
        again = other.datasets.upload(content, "same", progress=lambda *both: progress_calls.append(both))
        assert again.sha256 == first.sha256 == hashlib.sha256(content).hexdigest()
        # Each node of a cluster has a cache of its own.
        assert CLUSTER is not None or not progress_calls, "nothing was sent"
        assert other.run_code("import os; os.path.getsize('/session/data/same')").text == str(len(content))


def test_an_upload_survives_a_bad_line(server: Server, staging: Session, short_path: Path) -> None:
    line = CuttingProxy(server, short_path / "bad")
    try:
        with Client(line.url) as client:
            line.cuts = [0, 0]
            dataset = client.get_session(staging.id).datasets.upload(b"x" * 100_000, "x")
            assert dataset.size == 100_000
            assert not line.cuts
    finally:
        line.close()


def test_exports(staging: Session) -> None:
    staging.run_code("open('/session/data/out.txt', 'w').write('made inside')")
    exports = staging.datasets.export(["out.txt"])
    [export] = exports.exports
    assert export.dataset == "out.txt"
    assert export.host_path is not None
    assert Path(export.host_path).read_text() == "made inside"
    assert staging.artifacts.read(export) == b"made inside"
    assert exports.refused == []


def test_refusals(session: Session, staging: Session) -> None:
    with pytest.raises(Conflict) as none:
        session.datasets.upload(b"x", "x")
    assert none.value.code == "no_staging"
    with pytest.raises(NotFound):
        staging.datasets.stage("nowhere/known")
    with pytest.raises(InvalidRequest):
        staging.datasets.upload(b"x", "../x")
