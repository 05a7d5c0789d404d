"""Tools that use the browser of a session: a task in natural language, and pictures of pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolRuntime
from pydantic import Field

from belljar._aio.session import AsyncSession
from belljar._browser_calls import Screenshot, TaskResult
from belljar._sync.session import Session
from belljar.errors import BrowserError, InvalidRequest
from belljar.langgraph._model_access import Access
from belljar.langgraph._pictures import MAX_IMAGE_BYTES, with_pictures
from belljar.langgraph._render import clip, list_artifacts, note, section
from belljar.langgraph._tool import NO_RUNTIME, Answer, Sessions, live, make_tool, origin, refused
from belljar.manager import Opened

_TASK = """\
Has a task done in a web browser, said in natural language: it opens pages, clicks, fills in forms, finds things out. \
Say everything that matters, addresses and what you want to know included; it knows nothing of this conversation. \
`localhost` is the sandbox itself. Files that it downloads are in /session/downloads. It has {timeout:g} seconds."""

_SCREENSHOT = """\
Takes a picture of a web page, of an HTML file in the sandbox, or, without either, of the page that the browser shows. \
It becomes an artifact: the answer has a link that you can pass on. `localhost` is the sandbox itself."""

# What one may wait for before a picture is taken.
_WAIT = "What to wait for: 'load', 'domcontentloaded' or 'networkidle'."

UrlArg = Annotated[str, Field(description="The address of a page, or nothing.")]


@dataclass(frozen=True)
class BrowserModel:
    """The model that does browser tasks, where it is not the server's own: its name, where it answers in OpenAI's
    protocol, and the name of the session's variable that has its key, where the proxy does not add it."""

    model: str | None = None
    base_url: str | None = None
    key_from: str | None = None
    vision: bool | None = None


def make_browser_tool(
    sessions: Sessions, model: BrowserModel, *, timeout_s: float, max_chars: int, access: Access
) -> BaseTool:
    """The tool `browser_tool`."""
    asked: dict[str, Any] = {**vars(model), "timeout": timeout_s}

    def browser_tool(
        task: Annotated[str, Field(description="What is to be done, and what you want to know.")],
        max_steps: Annotated[int, Field(description="How many steps it may take.", ge=1, le=200)] = 25,
        runtime: ToolRuntime = NO_RUNTIME,
    ) -> Answer:
        def perform(opened: Opened[Session]) -> Answer:
            try:
                done = opened.session.browser.task(task, **asked, max_steps=max_steps, on_step=live(runtime))
            except (BrowserError, InvalidRequest) as error:
                return refused(error, opened, access.advice(error, is_task=True))
            return _done(opened.noting(access.introduction()), done, max_chars)

        return sessions.call(runtime, perform)

    async def abrowser_tool(
        task: Annotated[str, Field(description="What is to be done, and what you want to know.")],
        max_steps: Annotated[int, Field(description="How many steps it may take.", ge=1, le=200)] = 25,
        runtime: ToolRuntime = NO_RUNTIME,
    ) -> Answer:
        async def perform(opened: Opened[AsyncSession]) -> Answer:
            try:
                done = await opened.session.browser.task(task, **asked, max_steps=max_steps, on_step=live(runtime))
            except (BrowserError, InvalidRequest) as error:
                return refused(error, opened, access.advice(error, is_task=True))
            return _done(opened.noting(access.introduction()), done, max_chars)

        return await sessions.acall(runtime, perform)

    description = _TASK.format(timeout=timeout_s)
    return make_tool(browser_tool, abrowser_tool, name="browser_tool", description=description)


def make_screenshot_tool(sessions: Sessions, *, images: bool, access: Access) -> BaseTool:
    """The tool `screenshot_browser`; with `images` the model sees the picture as well."""

    def screenshot_browser(
        url: UrlArg = "",
        file: Annotated[str, Field(description="An HTML file of the sandbox, instead of an address.")] = "",
        full_page: Annotated[bool, Field(description="All of the page, not only what fits the window.")] = False,
        until: Annotated[str, Field(description=_WAIT)] = "load",
        runtime: ToolRuntime = NO_RUNTIME,
    ) -> Answer:
        def take(opened: Opened[Session]) -> Answer:
            asked = _asked(url, file, full_page, until)
            try:
                return _taken(opened, opened.session.browser.screenshot(**asked), images)
            except BrowserError as error:
                return refused(error, opened, access.advice(error, is_task=False))

        return sessions.call(runtime, take)

    async def ascreenshot_browser(
        url: UrlArg = "",
        file: Annotated[str, Field(description="An HTML file of the sandbox, instead of an address.")] = "",
        full_page: Annotated[bool, Field(description="All of the page, not only what fits the window.")] = False,
        until: Annotated[str, Field(description=_WAIT)] = "load",
        runtime: ToolRuntime = NO_RUNTIME,
    ) -> Answer:
        async def take(opened: Opened[AsyncSession]) -> Answer:
            asked = _asked(url, file, full_page, until)
            try:
                return _taken(opened, await opened.session.browser.screenshot(**asked), images)
            except BrowserError as error:
                return refused(error, opened, access.advice(error, is_task=False))

        return await sessions.acall(runtime, take)

    return make_tool(screenshot_browser, ascreenshot_browser, name="screenshot_browser", description=_SCREENSHOT)


def _asked(url: str, file: str, full_page: bool, until: str) -> dict[str, Any]:
    return {"url": url or None, "file": file or None, "full_page": full_page, "until": until}


def _done(opened: Opened[Any], done: TaskResult, max_chars: int) -> Answer:
    less = max(200, max_chars // 4)
    answer = clip(done.answer, max_chars) or "(It was done, and said nothing.)"
    said = [note(opened.notice), note(done.state.note), answer]
    if not done.success:
        said.append("It says itself that it did not succeed.")
    files = "\n".join(f"- {file.path}" for file in done.state.downloads)
    said += [section("downloads", files), section("steps", clip(done.log, less)), list_artifacts(done.state.artifacts)]
    told = {"status": "ok", **done.model_dump(mode="json"), **origin(opened)}
    return "\n".join(part for part in said if part), told


def _taken(opened: Opened[Any], picture: Screenshot, images: bool) -> Answer:
    said = [note(opened.notice), f"A picture of {picture.width} x {picture.height} pixels."]
    if picture.cut_off:
        said.append(f"The page goes on for {picture.cut_off} more.")
    said.append(list_artifacts([picture.artifact]))
    shown = [("image/png", picture.png)] if images and len(picture.png) <= MAX_IMAGE_BYTES else []
    told = {"status": "ok", "artifacts": [picture.artifact.model_dump(mode="json")], **origin(opened)}
    return with_pictures("\n".join(part for part in said if part), shown), told
