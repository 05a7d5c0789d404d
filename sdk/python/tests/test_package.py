"""The package without a server: imports, generated files, options."""

from __future__ import annotations

import ast
import dataclasses
import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from servers import python_path

import belljar
from belljar.manager import ManagerConfig, ManagerOptions, SessionManager

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"


def python(code: str) -> str:
    env = {"PYTHONPATH": python_path()}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_is_quick() -> None:
    measure = "import time; t = time.perf_counter(); import belljar; print(time.perf_counter() - t)"
    assert min(float(python(measure)) for _ in range(5)) < 0.150


def test_importing_loads_nothing_heavy() -> None:
    loaded = python("import sys, belljar; print(*sys.modules)").split()
    assert not {"httpx", "pydantic", "anyio", "ssl", "asyncio"} & set(loaded)


def test_managing_sessions_needs_no_langchain() -> None:
    loaded = python("import sys; from belljar import Config, SessionManager; print(*sys.modules)").split()
    assert not [name for name in loaded if name.startswith("lang")]


def test_who_lacks_langchain_is_told_what_to_install() -> None:
    said = python(
        "import sys; sys.modules['langchain_core'] = None\n"
        "try:\n    from belljar import make_code_sandbox_tool\n"
        "except ImportError as error:\n    print(error)"
    )
    assert "pip install 'belljar[langgraph]'" in said


def test_synchronous_use_loads_what_it_needs() -> None:
    # Every program with a client pays for this, so check it when it grows.
    loaded = python("import sys, belljar; belljar.Client('unix:/x'); print(*sys.modules)").split()
    assert "belljar._aio.client" not in loaded


def test_every_name_is_there() -> None:
    for name in belljar.__all__:
        assert getattr(belljar, name) is not None
        assert name in dir(belljar)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        belljar.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_one() -> None:
    declared = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared is not None
    assert declared[1] == belljar.__version__
    assert (SOURCE / "belljar" / "py.typed").exists()


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_python_3_10_understands_it(path: Path) -> None:
    # mypy checks the code for the standard library of this version.
    text = path.read_text()
    tree = ast.parse(text, feature_version=(3, 10))
    code = [node for node in tree.body if not isinstance(node, ast.Expr)]
    has_annotations = any(isinstance(node, (ast.AnnAssign, ast.arg)) for node in ast.walk(tree))
    if has_annotations:
        assert isinstance(code[0], ast.ImportFrom)
        assert code[0].module == "__future__"


def test_the_synchronous_half_is_made_of_the_other() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "generate_sync.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_the_reference_is_made_of_the_docstrings() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "generate_reference.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    page = (ROOT.parent.parent / "docs" / "reference" / "python.md").read_text()
    modules = {"errors", "events", "kernellite", "local", "models", "__version__", "Event"}
    twins = {name for name in belljar.__all__ if name.startswith("Async")}
    shown = set(re.findall(r"^###+ `?(?:await )?(\w+)", page, re.MULTILINE))
    assert set(belljar.__all__) - modules - twins - shown == set()


def test_errors_survive_the_way_to_another_process() -> None:
    error = belljar.TooMany("no room", code="no_room", hint="wait", status=429, retry_after=5.0)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is belljar.TooMany
    assert str(again) == "no room; wait"
    assert (again.code, again.status, again.retry_after) == ("no_room", 429, 5.0)


def test_keys_are_not_shown() -> None:
    client = belljar.Client("http://127.0.0.1:1", api_key="bj_secret")
    assert "secret" not in repr(client) + str(vars(client)) + client.url


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:8000", "http://", "nonsense"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(belljar.InvalidRequest, match="is not the address of a server"):
        belljar.Client(url)


def test_the_environment_names_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_API_URL", "http://two")
    assert belljar.Client().url == "http://two"
    monkeypatch.setenv("BELLJAR_URL", "http://one/")
    assert belljar.Client().url == "http://one"
    assert belljar.Client("unix:///run/b.sock").url == "unix:///run/b.sock"
    assert belljar.Client("local").url.startswith("unix:")


def test_options_of_the_manager_are_the_fields_of_its_configuration() -> None:
    """They are written twice: a `TypedDict` for keywords cannot be made from a dataclass."""
    fields = {field.name: field.type for field in dataclasses.fields(ManagerConfig)}
    assert ManagerOptions.__annotations__.keys() == fields.keys()
    options = {name: hint.__forward_arg__ for name, hint in ManagerOptions.__annotations__.items()}
    assert options == fields


def test_an_unknown_option_is_a_type_error() -> None:
    wrong: Any = {"memroy": "1G"}
    client = belljar.Client("http://127.0.0.1:9", patience=0)
    for call in (lambda: client.run("1", **wrong), lambda: client.session(**wrong), lambda: SessionManager(**wrong)):
        with pytest.raises(TypeError, match="memroy"):
            call()
