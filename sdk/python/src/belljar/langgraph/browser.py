"""Tools that use the browser of a session: for tasks in natural language, and for screenshots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolRuntime
from pydantic import Field

from belljar.langgraph._aio import actions as aio
from belljar.langgraph._browser_access import BrowserAccess
from belljar.langgraph._make_tool import Work, make_tool, work_in_session
from belljar.langgraph._sync import actions as sync
from belljar.langgraph._tool import NO_RUNTIME, Sessions, live

_TASK = """\
Does a task in a web browser that you describe in natural language: opens pages, clicks, fills in forms, reads. \
Describe everything that matters, with addresses and what you want to know: it does not know this conversation. \
`localhost` is the sandbox itself. Downloaded files are in /session/downloads. A task may take {timeout:g} seconds."""

_SCREENSHOT = """\
Takes a screenshot of a web page, of an HTML file in the sandbox, or, without either, of the browser's current page. \
It is stored as an artifact: the answer has a link that you can pass on. `localhost` is the sandbox itself."""

_WAIT = "What to wait for: 'load', 'domcontentloaded' or 'networkidle'."


@dataclass(frozen=True)
class BrowserModel:
    """The model that does browser tasks, instead of the server's default: its name, the address of an API in OpenAI's
    protocol, and, if the proxy does not add the API key, the session's variable that holds it."""

    model: str | None = None
    base_url: str | None = None
    key_from: str | None = None
    vision: bool | None = None


def make_browser_tool(
    sessions: Sessions, model: BrowserModel, *, timeout_s: float, max_chars: int, access: BrowserAccess
) -> BaseTool:
    """The tool `browser_tool`."""
    options: dict[str, Any] = {**vars(model), "timeout": timeout_s}

    def browser_tool(
        task: Annotated[str, Field(description="The task, and what you want to know.")],
        max_steps: Annotated[int, Field(description="How many steps it may take.", ge=1, le=200)] = 25,
        runtime: ToolRuntime = NO_RUNTIME,
    ) -> Work:
        return work_in_session(
            sessions,
            runtime,
            sync.browser_task,
            aio.browser_task,
            task,
            options={**options, "max_steps": max_steps},
            on_step=live(runtime),
            access=access,
            max_chars=max_chars,
        )

    return make_tool(browser_tool, name="browser_tool", description=_TASK.format(timeout=timeout_s))


def make_screenshot_tool(sessions: Sessions, *, images: bool, access: BrowserAccess) -> BaseTool:
    """The tool `screenshot_browser`; with `images` the model sees the screenshot too."""

    def screenshot_browser(
        url: Annotated[str, Field(description="The address of a page, or nothing.")] = "",
        file: Annotated[str, Field(description="An HTML file of the sandbox, instead of an address.")] = "",
        full_page: Annotated[bool, Field(description="The whole page, not only what fits the window.")] = False,
        until: Annotated[str, Field(description=_WAIT)] = "load",
        runtime: ToolRuntime = NO_RUNTIME,
    ) -> Work:
        options = {"url": url or None, "file": file or None, "full_page": full_page, "until": until}
        return work_in_session(
            sessions, runtime, sync.screenshot, aio.screenshot, options=options, images=images, access=access
        )

    return make_tool(screenshot_browser, name="screenshot_browser", description=_SCREENSHOT)
