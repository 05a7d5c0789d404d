"""A Python that remembers for every project, and data that comes and goes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers import Server

from belljar import Client, InvalidRequest, NotFound
from belljar.kernellite import _copies, exec_code, pandastool, ping, shutdown, start_container, stop_container
from belljar.kernellite._project import Project

SOURCE = Path(__file__).resolve().parent.parent / "src"


@pytest.fixture
def project(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("BELLJAR_URL", server.url)
    made = tmp_path / "sales"
    (made / "data" / "deep").mkdir(parents=True)
    (made / "data" / "deep" / "a.txt").write_text("a")
    (made / "notes.md").write_text("notes")
    yield made
    if ping(made):
        shutdown(made)


@pytest.fixture(scope="module")
def allowing(_scratch: None) -> Iterator[Server]:
    """A server that shows directories, as the local one of a user does."""
    started = Server(Path(tempfile.mkdtemp(prefix="s-")), BELLJAR_WORKSPACES="/").start()
    yield started
    started.stop()


# A node is another machine than the client's.
on_this_machine = pytest.mark.single_server("the server shows a directory of the client's own machine")


@pytest.fixture
def mounted(allowing: Server, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BELLJAR_URL", allowing.url)
    return project


@on_this_machine
def test_the_project_itself_is_there(mounted: Path) -> None:
    started = start_container(mounted, "sales", idle_hibernate_sec=900)
    assert started["mounted"]
    assert started["why_copied"] is None
    assert started["copied"] == 0
    code = "import os; os.makedirs('src'); open('notes.md', 'a').write(' more'); open('src/made.py', 'w').write('x=1')"
    assert exec_code(mounted, code) == {"status": "[OK] exec", "stdout": "3\n", "stderr": ""}
    assert (mounted / "src/made.py").read_text() == "x=1"
    assert (mounted / "notes.md").read_text() == "notes more"
    assert (mounted / "src/made.py").stat().st_uid == mounted.stat().st_uid
    out = pandastool("import pandas as pd; save(pd.DataFrame({'a': [1, 2]}), 'demo'); load('demo').shape", str(mounted))
    assert json.loads(out)["stdout"] == "(2, 1)\n"
    assert (mounted / "data" / "demo.parquet").read_bytes()[:4] == b"PAR1"
    # What is removed inside is removed, and what changes here is seen at once.
    (mounted / "late.txt").write_text("late")
    assert exec_code(mounted, "print(open('/workspace/late.txt').read()); os.remove('late.txt')")["stdout"] == "late\n"
    assert not (mounted / "late.txt").exists()
    assert not (mounted / ".sandbox").exists()
    again = start_container(mounted, "sales")
    assert (again["how"], again["mounted"]) == ("found", True)
    with pytest.raises(InvalidRequest, match="shutdown"):
        start_container(mounted, "sales", mount=False)
    assert shutdown(mounted)
    assert (mounted / "src/made.py").exists()


@on_this_machine
def test_what_looks_secret_is_not_shown_unasked(mounted: Path) -> None:
    (mounted / ".env").write_text("hunter2")
    with pytest.warns(UserWarning, match=r"\.env"):
        started = start_container(mounted, "sales")
    assert not started["mounted"]
    assert started["why_copied"] == "`.env` looks secret"
    assert exec_code(mounted, "import os; os.path.exists('/workspace/.env')")["stdout"] == "False\n"
    shutdown(mounted)
    assert start_container(mounted, "sales", secrets=[".env"])["mounted"]
    assert exec_code(mounted, "open('.env').read()")["stdout"] == "'hunter2'\n"


@on_this_machine
def test_settings_of_the_container(mounted: Path, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IDLE_HIBERNATE_SEC", "7")
    started = start_container(mounted, "sales", memory="200m", cpus=0.5, pids=64, env={"MINE": "yes"})
    with Client() as asked:
        info = asked.get_session(started["session_id"]).info
    assert (info.limits.memory, info.limits.cpus, info.limits.pids) == (200 << 20, 0.5, 64)
    assert info.idle_hibernate_sec == 7
    reply = exec_code(mounted, "import os; [os.environ[name] for name in ('WORKSPACE_DIR', 'DEBUG', 'MINE')]")
    assert reply["stdout"] == "['/workspace', '0', 'yes']\n"
    shutdown(mounted)
    monkeypatch.setenv("WORKSPACE_DIR", "/elsewhere")
    with pytest.raises(InvalidRequest, match="WORKSPACE_DIR"):
        start_container(mounted, "sales")
    monkeypatch.setenv("WORKSPACE_DIR", "/workspace/")
    monkeypatch.setenv("IDLE_HIBERNATE_SEC", "soon")
    with pytest.raises(InvalidRequest, match="IDLE_HIBERNATE_SEC"):
        start_container(mounted, "sales")


@on_this_machine
def test_idle_values_go_to_disk_when_the_project_says_so(mounted: Path) -> None:
    start_container(mounted, "sales", idle_hibernate_sec=1)
    exec_code(mounted, "import numpy as np; big = np.arange(1_000_000.0)")
    # Without looking into the session, which would use it.
    deadline = time.monotonic() + 30
    while not (spilled := list((mounted / "data").glob(".*"))) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert spilled, "nothing was moved to the project's data directory"
    assert exec_code(mounted, "int(big.sum())")["stdout"] == "499999500000\n"


@on_this_machine
def test_what_the_tool_is_not_given_is_in_the_environment(
    mounted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert "PANDAS_SANDBOX_PROJECT_DIR" in json.loads(pandastool("1"))["stderr"]
    monkeypatch.setenv("PANDAS_SANDBOX_PROJECT_DIR", str(mounted))
    monkeypatch.setenv("PANDAS_SANDBOX_SOCKET_DIR", str(tmp_path / "sock"))
    monkeypatch.setenv("PANDAS_SANDBOX_SLUG", "by-environment")
    assert capfd.readouterr().err == ""
    monkeypatch.setenv("DEBUG", "1")
    reply = json.loads(pandastool("import os; open('notes.md').read(), os.environ['DEBUG']"))
    assert reply["stdout"] == "('notes', '1')\n"
    said = capfd.readouterr().err
    assert f"for {mounted}, with the directory itself" in said
    assert "characters of code in ses_" in said
    assert stop_container("by-environment")
    assert not ping(mounted)


def test_as_its_users_know_it(project: Path, tmp_path: Path) -> None:
    sock = tmp_path / "sockets"
    started = start_container(project, "sales", idle_hibernate_sec=900, socket_dir=sock)
    assert started["how"] == "created"
    assert started["copied"] == 2
    assert started["left_out"] == []
    assert ping(project, socket_dir=sock)
    code = "import pandas as pd; df=pd.DataFrame({'x':[1,2,3]}); print(df.shape)"
    r = exec_code(project, code, socket_dir=sock)
    assert r == {"status": "[OK] exec", "stdout": "(3, 1)\n", "stderr": ""}

    # The session persists, and what is saved is in the project at once.
    out = pandastool(code="save(df, 'demo'); print(load('demo').shape)", project_dir=str(project), socket_dir=str(sock))
    assert json.loads(out) == {"status": "[OK] exec", "stdout": "(3, 1)\n", "stderr": ""}
    table = project / "data" / "demo.parquet"
    assert table.read_bytes()[:4] == b"PAR1"
    assert not list((project / "data").glob(".*"))

    # What changes here is there at the next call.
    (project / "data" / "copy.parquet").write_bytes(table.read_bytes())
    assert exec_code(project, "print(load('copy').x.sum())", socket_dir=sock)["stdout"] == "6\n"
    assert not (project / ".sandbox").exists()
    assert (sock / "kernellite.json").exists()

    assert shutdown(project, socket_dir=sock)
    assert not ping(project, socket_dir=sock)
    assert not shutdown(project, socket_dir=sock)
    with pytest.raises(NotFound, match="start_container"):
        exec_code(project, "1", socket_dir=sock)


def test_statuses(project: Path) -> None:
    start_container(project, "sales")
    assert exec_code(project, "x = 41")["status"] == "[OK] exec"
    assert exec_code(project, "print('a'); x + 1")["stdout"] == "a\n42\n"
    failed = exec_code(project, "print('before'); 1 / 0")
    assert (failed["status"], failed["stdout"]) == ("[ERROR] exec", "before\n")
    assert "ZeroDivisionError" in failed["stderr"]
    assert "Traceback" in failed["stderr"]
    late = exec_code(project, "while True: pass", timeout=0.5)
    assert late["status"] == "[TIMEOUT] exec"
    assert "too long" in late["stderr"]
    died = exec_code(project, "import os; os._exit(3)")
    assert died["status"] == "[CRASHED] exec"
    assert "all variables are lost" in died["stderr"]
    assert exec_code(project, "open('notes.md').read()")["stdout"] == "'notes'\n"


def test_any_process_finds_it_by_the_path(project: Path, tmp_path: Path) -> None:
    first = start_container(project, "sales")
    exec_code(project, "x = 41")
    (tmp_path / "link").symlink_to(project)
    code = f"from belljar.kernellite import exec_code; print(exec_code({str(tmp_path / 'link')!r}, 'x + 1')['stdout'])"
    env = {**os.environ, "PYTHONPATH": str(SOURCE)}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout == "42\n\n"
    again = start_container(project, "sales")
    assert (again["session_id"], again["how"], again["copied"]) == (first["session_id"], "found", 0)


def test_what_code_makes_below_data_is_written_back(project: Path) -> None:
    start_container(project, "sales")
    made = exec_code(
        project, "import os; os.makedirs('data/new/er'); open('data/new/er/ü.bin', 'wb').write(b'x' * 3000000)"
    )
    assert made["stderr"] == ""
    assert (project / "data/new/er/ü.bin").read_bytes() == b"x" * 3000000
    changed = exec_code(project, "open('data/deep/a.txt', 'w').write('b'); open('elsewhere', 'w').write('no')")
    assert changed["stderr"] == ""
    assert (project / "data/deep/a.txt").read_text() == "b"
    assert not (project / "elsewhere").exists()
    # Neither is brought in again, nor written back again.
    before = (project / "data/new/er/ü.bin").stat()
    exec_code(project, "1")
    assert (project / "data/new/er/ü.bin").stat() == before
    exec_code(project, "os.remove('data/deep/a.txt')")
    assert (project / "data/deep/a.txt").exists(), "nothing is removed here"


def test_nothing_is_written_outside_of_data(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("mine")
    (project / "data" / "linked").symlink_to(outside)
    (project / "data" / "file").symlink_to(outside / "secret")
    start_container(project, "sales")
    # Links here are not followed on the way in ...
    assert (
        exec_code(project, "import os; print(os.path.exists('data/linked'), os.path.exists('data/file'))")["stdout"]
        == "False False\n"
    )
    # ... nor on the way back, and those inside are not links to us.
    done = exec_code(
        project,
        """
os.makedirs('data/linked'); open('data/linked/planted', 'w').write('evil')
open('data/file', 'w').write('new')
os.symlink('/etc/passwd', 'data/passwd'); os.symlink('/etc', 'data/etc'); os.mkfifo('data/pipe')
""",
    )
    assert "not written back: linked/planted" in done["stderr"]
    assert os.listdir(outside) == ["secret"]
    assert (outside / "secret").read_text() == "mine"
    assert (project / "data/file").read_text() == "new"
    assert not (project / "data/file").is_symlink()
    assert sorted(os.listdir(project / "data")) == ["deep", "file", "linked"]
    # Nor is all of a sandbox data because code says so.
    exec_code(project, "import shutil; os.rename('data', 'old'); os.symlink('/etc', 'data')")
    moved = exec_code(project, "1")
    assert "no longer a directory" in moved["stderr"]
    assert sorted(os.listdir(project / "data")) == [
        "deep",
        "file",
        "linked",
    ]


def test_secrets_stay_here(project: Path) -> None:
    for path in (".env", ".env.local", "deploy/tls.pem", ".ssh/config", "id_ed25519", "data/prod.key"):
        (project / path).parent.mkdir(exist_ok=True)
        (project / path).write_text("hunter2")
    for path in (".env.example", "data/keys.csv", "id_ed25519.pub"):
        (project / path).write_text("anybody may know")
    with pytest.warns(UserWarning, match="may hold secrets"):
        started = start_container(project, "sales")
    assert sorted(left.partition(" ")[0] for left in started["left_out"]) == [
        ".env", ".env.local", ".ssh/config", "data/prod.key", "deploy/tls.pem", "id_ed25519",
    ]  # fmt: skip
    look = "import os; found = [p + '/' + f for p, _, files in os.walk('/workspace/') for f in files]\n"
    look += "print(sum('hunter2' in open(f).read() for f in found), sum('anybody' in open(f).read() for f in found))"
    assert exec_code(project, look)["stdout"] == "0 3\n"
    # Nor does code get to replace them, or to be told of them again and again.
    written = exec_code(project, "open('data/prod.key', 'w').write('mine'); open('data/.env', 'w').write('x')")
    assert "not written back: data/prod.key (it may hold secrets)" in written["stderr"]
    assert (project / "data/prod.key").read_text() == "hunter2"
    assert not (project / "data/.env").exists()
    (project / "data/prod.key").write_text("hunter2 again")
    assert "data/prod.key" in exec_code(project, "1")["stderr"]
    assert exec_code(project, "open('data/prod.key').read()") == {
        "status": "[OK] exec", "stdout": "'mine'\n", "stderr": "",
    }  # fmt: skip

    # Unless the user says so.
    again = start_container(project, "sales", secrets=[".env", "data/prod.key"])
    assert again["how"] == "found"
    assert again["copied"] == 2
    read = "print(open('.env').read(), open('data/prod.key').read())"
    assert exec_code(project, read)["stdout"] == "hunter2 hunter2 again\n"


@pytest.mark.parametrize(
    "parts", [[], [".."], ["..", "x"], ["a", "..", "..", "x"], ["/etc/x"], ["a/../x"], [""], ["a\0"]]
)
def test_names_that_would_lead_outside(project: Path, parts: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        Project(project, None).write(parts, [b"x"])
    assert sorted(os.listdir(project)) == ["data", "notes.md"]


def test_a_file_that_does_not_come_whole_does_not_come(project: Path) -> None:
    def broken() -> Iterator[bytes]:
        yield b"half"
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        Project(project, None).write(["deep", "a.txt"], broken())
    assert os.listdir(project / "data" / "deep") == ["a.txt"]
    assert (project / "data/deep/a.txt").read_text() == "a"


def test_what_is_left_out_is_said(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_copies, "MAX_FILE", 1000)
    monkeypatch.setattr(_copies, "MAX_FILES", 3)
    (project / "data" / "big").write_bytes(b"x" * 2000)
    (project / ".git").mkdir()
    (project / ".git" / "config").touch()
    for number in range(4):
        (project / f"f{number}").touch()
    with pytest.warns(UserWarning, match="not copied into the sandbox"):
        started = start_container(project, "sales")
    assert started["copied"] == 3
    assert [what.split()[0] for what in started["left_out"]] == ["f3", "notes.md", "data/big", "data/deep/a.txt"]
    done = exec_code(project, "import os; print(sorted(os.listdir())); open('data/large', 'w').write('x' * 5000)")
    assert ".git" not in done["stdout"]
    assert "not written back: data/large" in done["stderr"]
    assert not (project / "data/large").exists()
    assert exec_code(project, "1")["stderr"] == "", "once is enough"


def test_by_its_slug(project: Path, client: Client) -> None:
    started = start_container(project, "to-be-stopped")
    assert stop_container("to-be-stopped")
    assert not ping(project)
    assert not stop_container("to-be-stopped")
    # The tool starts one by itself, and says that it is another.
    done = json.loads(pandastool("open('notes.md').read()", str(project)))
    assert (done["status"], done["stdout"]) == ("[OK] exec", "'notes'\n")
    assert "variables are lost" in done["stderr"]
    assert json.loads(pandastool("1", str(project)))["stderr"] == ""
    assert client.sessions(key=Project(project, None).key)[0].id != started["session_id"]


def test_the_tool_never_raises(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(pandastool("1", str(project / "none")))["status"] == "[ERROR] sandbox"
    monkeypatch.setenv("BELLJAR_URL", "http://127.0.0.1:9")
    done = json.loads(pandastool("1", str(project)))
    assert done["status"] == "[ERROR] sandbox"
    assert "nothing listens" in done["stderr"]
    assert not ping(project)
