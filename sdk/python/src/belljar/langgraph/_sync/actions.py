# Generated from ../_aio/actions.py by scripts/generate_sync.py; change that file.
"""What each tool does in a session. The tools themselves are defined in the modules above this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from belljar._sync.client import Client
from belljar._sync.session import Session
from belljar.errors import BelljarError, BrowserError, InvalidRequest
from belljar.events import Output
from belljar.langgraph import _browser_answers, _dataset_answers, _file_answers
from belljar.langgraph._browser_access import BrowserAccess
from belljar.langgraph._fetch import FetchFn, fetched
from belljar.langgraph._images import Image, displayed, saved
from belljar.langgraph._render import answer
from belljar.langgraph._tool import Answer, infrastructure, refused
from belljar.manager import ExecResult, Opened, SessionManager

OnOutput = Callable[[Output], None] | None

# Code and commands.


def run_command(
    opened: Opened[Session], command: str, *, timeout: float, on_output: OnOutput, max_chars: int
) -> Answer:
    result = opened.session.run_command(command, timeout=timeout, on_output=on_output)
    return answer(opened.result(result), [], max_chars)


def run_code(
    opened: Opened[Session], code: str, *, timeout: float, on_output: OnOutput, images: bool, max_chars: int
) -> Answer:
    result = opened.result(opened.session.run_code(code, timeout=timeout, on_output=on_output))
    shown = _images_of(opened.session._client, result) if images else []
    return answer(result, shown, max_chars)


def run_once(
    manager: SessionManager, code: str, *, timeout: float, on_output: OnOutput, images: bool, max_chars: int
) -> Answer:
    """Runs code in a new sandbox, which is removed afterwards."""
    with infrastructure():
        result = manager.run(code, timeout, on_output=on_output)
        shown = _images_of(manager.client, result) if images else []
        return answer(result, shown, max_chars)


def _images_of(client: Client, result: ExecResult) -> list[Image]:
    """The images that the code displayed, else those that it saved: usually these are the same images.

    An image that cannot be fetched has no bytes: that is no failure, as the code has run.
    """
    images = displayed(result)
    for artifact, is_wanted in [] if images else saved(result):
        try:
            content = client.artifacts.read(artifact) if is_wanted else b""
        except BelljarError:
            content = b""
        images.append((str(artifact.mime), content))
    return images


# Files.


def list_files(opened: Opened[Session], path: str, *, recursive: bool) -> Answer:
    return _file_answers.listed(opened, path, opened.session.files.list(path, recursive=recursive))


def read_file(
    opened: Opened[Session], path: str, *, start_line: int, max_lines: int, images: bool, max_chars: int
) -> Answer:
    info = opened.session.files.stat(path)
    content = opened.session.files.read(path, end=_file_answers.MAX_READ)
    part = _file_answers.Part(start_line, max_lines, max_chars)
    return _file_answers.content(opened, info, content, part, images=images)


def write_file(opened: Opened[Session], path: str, content: str) -> Answer:
    written = opened.session.files.write(path, content.encode())
    return _file_answers.done(opened, "Wrote", path, written)


def delete_file(opened: Opened[Session], path: str, *, recursive: bool) -> Answer:
    opened.session.files.delete(path, recursive=recursive)
    return _file_answers.done(opened, "Deleted", path, None)


def make_directory(opened: Opened[Session], path: str) -> Answer:
    made = opened.session.files.mkdir(path)
    return _file_answers.done(opened, "Created the directory", path, made)


# The browser.


def browser_task(
    opened: Opened[Session],
    task: str,
    *,
    options: dict[str, Any],
    on_step: OnOutput,
    access: BrowserAccess,
    max_chars: int,
) -> Answer:
    try:
        done = opened.session.browser.task(task, **options, on_step=on_step)
    except (BrowserError, InvalidRequest) as error:
        return refused(error, opened, access.advice(error, is_task=True))
    return _browser_answers.task_done(opened.noting(access.introduction()), done, max_chars)


def screenshot(
    opened: Opened[Session], *, options: dict[str, Any], images: bool, access: BrowserAccess
) -> Answer:
    try:
        taken = opened.session.browser.screenshot(**options)
    except BrowserError as error:
        return refused(error, opened, access.advice(error, is_task=False))
    return _browser_answers.screenshot_taken(opened, taken, images)


# Datasets.


def select_dataset(opened: Opened[Session], dataset_id: str, *, fetch: FetchFn | None) -> Answer:
    datasets = opened.session.datasets
    if fetch is None:
        return _dataset_answers.selected(opened, dataset_id, datasets.stage(dataset_id))
    existing = _dataset_answers.find(datasets.list(), dataset_id)
    if existing is not None:
        return _dataset_answers.selected(opened, dataset_id, existing, existed=True)
    try:
        content = fetched(fetch, dataset_id)
    except Exception as error:
        return _dataset_answers.failed(opened, dataset_id, error)
    uploaded = datasets.upload(content, _dataset_answers.name_of(dataset_id, content))
    # The list has its columns too.
    listed = _dataset_answers.find(datasets.list(), uploaded.name)
    return _dataset_answers.selected(opened, dataset_id, listed or uploaded)


def list_datasets(opened: Opened[Session]) -> Answer:
    return _dataset_answers.listed(opened, opened.session.datasets.list())


def export_datasets(opened: Opened[Session], names: list[str] | None) -> Answer:
    return _dataset_answers.exported(opened, opened.session.datasets.export(names))
