"""What each tool does in a session. The tools themselves are defined in the modules above this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from belljar._aio.client import AsyncClient
from belljar._aio.session import AsyncSession
from belljar.errors import BelljarError, BrowserError, InvalidRequest
from belljar.events import Output
from belljar.langgraph import _browser_answers, _dataset_answers, _file_answers
from belljar.langgraph._browser_access import BrowserAccess
from belljar.langgraph._fetch import FetchFn, afetched
from belljar.langgraph._images import Image, displayed, saved
from belljar.langgraph._render import answer
from belljar.langgraph._tool import Answer, infrastructure, refused
from belljar.manager import ExecResult, Opened, SessionManager

OnOutput = Callable[[Output], None] | None

# Code and commands.


async def run_command(
    opened: Opened[AsyncSession], command: str, *, timeout: float, on_output: OnOutput, max_chars: int
) -> Answer:
    result = await opened.session.run_command(command, timeout=timeout, on_output=on_output)
    return answer(opened.result(result), [], max_chars)


async def run_code(
    opened: Opened[AsyncSession], code: str, *, timeout: float, on_output: OnOutput, images: bool, max_chars: int
) -> Answer:
    result = opened.result(await opened.session.run_code(code, timeout=timeout, on_output=on_output))
    shown = await _images_of(opened.session._client, result) if images else []
    return answer(result, shown, max_chars)


async def run_once(
    manager: SessionManager, code: str, *, timeout: float, on_output: OnOutput, images: bool, max_chars: int
) -> Answer:
    """Runs code in a new sandbox, which is removed afterwards."""
    with infrastructure():
        result = await manager.arun(code, timeout, on_output=on_output)
        shown = await _images_of(manager.async_client, result) if images else []
        return answer(result, shown, max_chars)


async def _images_of(client: AsyncClient, result: ExecResult) -> list[Image]:
    """The images that the code displayed, else those that it saved: usually these are the same images.

    An image that cannot be fetched has no bytes: that is no failure, as the code has run.
    """
    images = displayed(result)
    for artifact, is_wanted in [] if images else saved(result):
        try:
            content = await client.artifacts.read(artifact) if is_wanted else b""
        except BelljarError:
            content = b""
        images.append((str(artifact.mime), content))
    return images


# Files.


async def list_files(opened: Opened[AsyncSession], path: str, *, recursive: bool) -> Answer:
    return _file_answers.listed(opened, path, await opened.session.files.list(path, recursive=recursive))


async def read_file(
    opened: Opened[AsyncSession], path: str, *, start_line: int, max_lines: int, images: bool, max_chars: int
) -> Answer:
    info = await opened.session.files.stat(path)
    content = await opened.session.files.read(path, end=_file_answers.MAX_READ)
    part = _file_answers.Part(start_line, max_lines, max_chars)
    return _file_answers.content(opened, info, content, part, images=images)


async def write_file(opened: Opened[AsyncSession], path: str, content: str) -> Answer:
    written = await opened.session.files.write(path, content.encode())
    return _file_answers.done(opened, "Wrote", path, written)


async def delete_file(opened: Opened[AsyncSession], path: str, *, recursive: bool) -> Answer:
    await opened.session.files.delete(path, recursive=recursive)
    return _file_answers.done(opened, "Deleted", path, None)


async def make_directory(opened: Opened[AsyncSession], path: str) -> Answer:
    made = await opened.session.files.mkdir(path)
    return _file_answers.done(opened, "Created the directory", path, made)


# The browser.


async def browser_task(
    opened: Opened[AsyncSession],
    task: str,
    *,
    options: dict[str, Any],
    on_step: OnOutput,
    access: BrowserAccess,
    max_chars: int,
) -> Answer:
    try:
        done = await opened.session.browser.task(task, **options, on_step=on_step)
    except (BrowserError, InvalidRequest) as error:
        return refused(error, opened, access.advice(error, is_task=True))
    return _browser_answers.task_done(opened.noting(access.introduction()), done, max_chars)


async def screenshot(
    opened: Opened[AsyncSession], *, options: dict[str, Any], images: bool, access: BrowserAccess
) -> Answer:
    try:
        taken = await opened.session.browser.screenshot(**options)
    except BrowserError as error:
        return refused(error, opened, access.advice(error, is_task=False))
    return _browser_answers.screenshot_taken(opened, taken, images)


# Datasets.


async def select_dataset(opened: Opened[AsyncSession], dataset_id: str, *, fetch: FetchFn | None) -> Answer:
    datasets = opened.session.datasets
    if fetch is None:
        return _dataset_answers.selected(opened, dataset_id, await datasets.stage(dataset_id))
    existing = _dataset_answers.find(await datasets.list(), dataset_id)
    if existing is not None:
        return _dataset_answers.selected(opened, dataset_id, existing, existed=True)
    try:
        content = await afetched(fetch, dataset_id)
    except Exception as error:
        return _dataset_answers.failed(opened, dataset_id, error)
    uploaded = await datasets.upload(content, _dataset_answers.name_of(dataset_id, content))
    # The list has its columns too.
    listed = _dataset_answers.find(await datasets.list(), uploaded.name)
    return _dataset_answers.selected(opened, dataset_id, listed or uploaded)


async def list_datasets(opened: Opened[AsyncSession]) -> Answer:
    return _dataset_answers.listed(opened, await opened.session.datasets.list())


async def export_datasets(opened: Opened[AsyncSession], names: list[str] | None) -> Answer:
    return _dataset_answers.exported(opened, await opened.session.datasets.export(names))
