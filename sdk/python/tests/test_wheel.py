"""The wheel, in an environment with nothing else in it, on a machine without Rust."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from pages import Page
from servers import REPOSITORY
from users import User


@pytest.fixture(scope="module")
def wheel() -> Path:
    """`make test` builds it, with nothing to compile after `make build`."""
    named = os.environ.get("WHEEL_TO_TEST")
    made = [Path(named)] if named else sorted((REPOSITORY / "dist").glob("belljar-*.whl"))
    is_there = [path.is_file() for path in made] == [True]
    assert is_there, "no wheel to test: `make wheel` makes one; or name it: WHEEL_TO_TEST"
    return made[0]


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of an environment with the wheel and what it needs."""
    directory = tmp_path_factory.mktemp("empty")
    # The pip that we have installs into it: a pip of its own would take seconds to install.
    venv.create(directory, with_pip=False)
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"]
    install = [str(part) for part in (*pip, "--only-binary", ":all:", "--no-compile", wheel)]
    subprocess.run(install, check=True, env={**os.environ, "PATH": without_rust()})
    return python


@pytest.fixture
def stranger(user: User, python: Path) -> User:
    """A user who has the wheel, but neither our sources nor Rust nor a server."""
    for name in ("PYTHONPATH", "BELLJAR_BINARY", "BELLJAR_PRELOAD", "BELLJAR_POOL"):
        del user.env[name]
    user.env["PATH"] = f"{python.parent}{os.pathsep}{without_rust()}"
    return user


def without_rust() -> str:
    tools = ("cargo", "rustc")
    kept = [path for path in ("/usr/bin", "/bin") if not any(Path(path, tool).exists() for tool in tools)]
    path = os.pathsep.join(kept)
    assert not any(shutil.which(tool, path=path) for tool in tools)
    return path


@pytest.mark.parametrize("readme", ["README.md", "sdk/python/README.md"])
def test_the_readmes_example_runs_right_after_the_installation(stranger: User, python: Path, readme: str) -> None:
    page = Page.read(REPOSITORY / readme)
    first = next(block for block in page.blocks if block.language == "python")
    assert "belljar.run(" in first.code
    assert "with belljar.Client() as client" in first.code
    page.blocks = [first]
    assert stranger.servers() == []
    done = stranger.run(python, "-c", page.program(), timeout=120)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    page.check(done.stdout)
    assert len(first.printed) == 2
    assert len(stranger.servers()) == 1

    # The shortest of all, with the server that is there by now.
    done = stranger.run(python, "-c", "import belljar; print(belljar.run('1+1').text)")
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n", "")


def test_without_setup_it_runs_plain_python_and_says_so(stranger: User, python: Path) -> None:
    bare = {"BELLJAR_HOME": str(stranger.home / "nothing")}
    code = "import belljar; print(belljar.run('1+1').text); print(belljar.run('import pandas').error.value)"
    done = stranger.run(python, "-c", code, env=bare)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2\nNo module named 'pandas'")
    assert done.stderr.count("\n") == 1
    assert "`sandbox-setup` installs these packages" in done.stderr
    # Later programs find a server, and the program that started it got the warning.
    again = stranger.run(python, "-c", "import belljar; belljar.run('1')", env=bare)
    assert (again.returncode, again.stderr) == (0, "")


def test_commands_come_with_it(stranger: User, python: Path) -> None:
    assert stranger.run("belljar", "--version").stdout.startswith("belljar ")
    helped = stranger.run("sandbox-setup", "--help")
    assert helped.returncode == 0
    assert "--force" in helped.stdout
    # What it needs for an agent was not asked for.
    refused = stranger.run("langgraph-sandbox")
    assert refused.returncode == 1
    assert refused.stderr.strip().endswith("pip install 'belljar[langgraph]'")


def test_what_is_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    assert {"belljar/__init__.py", "belljar/py.typed", "belljar/_sync/client.py"} <= set(names)
    assert [name for name in names if name.endswith(".data/scripts/belljar")]
    # Nothing of the tests, nothing that was compiled here, and nothing of this machine.
    assert not [name for name in names if "test" in name or name.endswith(".pyc")]
    needed = [line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra" not in line]
    names = sorted(line.split()[1].split(">")[0].split("<")[0] for line in needed)
    assert names == ["httpx", "pydantic", "typing_extensions"]
    assert wheel.name.endswith("_x86_64.whl") or sys.platform != "linux" or os.uname().machine != "x86_64"
