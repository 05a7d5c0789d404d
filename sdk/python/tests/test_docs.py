"""All code on the pages of the documentation runs, and does what the page says."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_model import FakeModel
from pages import Page
from servers import REPOSITORY, binary, remove_groups
from users import User

DOCS = REPOSITORY / "docs"
# Nothing in them is to be run: one is made of docstrings, one of the list of settings.
MADE = {DOCS / "reference" / "python.md", DOCS / "settings.md"}
PAGES = sorted({*DOCS.rglob("*.md"), REPOSITORY / "README.md", REPOSITORY / "sdk" / "python" / "README.md"} - MADE)


@pytest.fixture
def reader(user: User) -> Iterator[User]:
    """A user who follows a page, with the commands of the package on the PATH."""
    commands = user.home / "bin"
    commands.mkdir()
    modules = {name: f"-m belljar.console.{name.replace('-', '_')}" for name in ("langgraph-sandbox", "sandbox-setup")}
    for name, arguments in {**modules, "python": ""}.items():
        (commands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (commands / name).chmod(0o755)
    (commands / "belljar").symlink_to(binary())
    user.env["PATH"] = f"{commands}{os.pathsep}{user.env['PATH']}"
    # A server that is started on a page is not the one that runs on this machine already.
    group = f"belljar-docs-{os.urandom(4).hex()}"
    places = (
        "BELLJAR_STATE_DIR",
        "SESSIONS_ROOT",
        "BLOBSTORE_DIR",
        "ARTIFACTS_DB",
        "BELLJAR_DATASET_CACHE",
        "BELLJAR_VOLUMES_DIR",
        "BELLJAR_RUN_DIR",
    )
    shell_env = {name: str(user.home / "served" / name.lower()) for name in places}
    user.env["SHELL_ENV"] = json.dumps({**shell_env, "BELLJAR_CGROUP_PARENT": group})
    yield user
    remove_groups(group)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_page(reader: User, path: Path) -> None:
    page = Page.read(path)
    if path.name == "README.md" and path.parent == REPOSITORY:
        # What it shows of the command line is shown by `make demo`.
        page.blocks = [block for block in page.blocks if block.language == "python"]
    if not any(block.runs for block in page.blocks):
        return
    with FakeModel(page.script) as model:
        env = {"OPENAI_API_KEY": "sk-none", "OPENAI_BASE_URL": model.url}
        done = reader.run(sys.executable, "-c", page.program(), timeout=180, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    page.check(done.stdout)
    assert model.left == 0, f"{model.left} things that the model was to say were not asked for"


def test_links_lead_somewhere() -> None:
    for path in PAGES:
        for target in re.findall(r"\]\((?!http)([^)#]+)", path.read_text()):
            assert (path.parent / target).exists(), f"{path}: {target}"


def test_few_blocks_do_not_run() -> None:
    # A new one needs a reason, on the page and here.
    blocks = [(path.name, block) for path in PAGES for block in Page.read(path).blocks]
    assert [name for name, block in blocks if block.not_run] == ["tutorial.md"]
    assert {block.language for _, block in blocks} <= {"python", "sh", "text", "csv", "console", "json"}


def test_what_pages_say_is_checked() -> None:
    page = Page.read(Path(__file__).parent / "data" / "page.md")
    assert [block.language for block in page.blocks if block.runs] == ["python", "python"]
    assert page.script == ["hello"]
    assert page.blocks[1].not_run == "it would take too long"
    page.check("\x1e4\n42\n\x1e20\none\nof\nthree\n")
    for wrong in ("\x1e4\n43\n\x1e20\none\nof\nthree\n", "\x1e4\n42\n\x1e20\none\n", "\x1e4\n42\n"):
        with pytest.raises(AssertionError):
            page.check(wrong)
