# Generated from ../_aio/browser.py by scripts/generate_sync.py; change that file.
"""The browser of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from belljar import _browser_calls
from belljar._sync import _io
from belljar._sync.artifacts import Artifacts
from belljar._sync.stream import Stream
from belljar._browser_calls import BrowserState, Download, Screenshot, TaskResult
from belljar._options import ElementOptions, TabOptions, WaitOptions, checked
from belljar.errors import ProtocolError
from belljar.events import Output

if TYPE_CHECKING:
    from belljar._sync.client import Client


class Browser:
    """The browser of a session (`session.browser`): Chromium in the sandbox. The first action starts it; it is stopped
    when it is idle, and then its pages are restored by the next action.

    >>> session.browser.goto("http://localhost:8000")
    >>> session.browser.click(text="Prices")
    >>> print(session.browser.snapshot())

    An element is selected by its `ref` in the last snapshot, by a CSS `selector`, or by its `text`. An action that
    fails raises `BrowserError`; its `code` is the reason.
    """

    def __init__(self, client: Client, session_id: str) -> None:
        self._client = client
        self._session_id = session_id

    def _act(self, action: str, **fields: Any) -> BrowserState:
        return self._client._do(_browser_calls.act(self._session_id, action, fields))

    def status(self) -> BrowserState:
        """Whether the browser runs, and what its tabs show. Does not start it."""
        return self._client._do(_browser_calls.status(self._session_id))

    def goto(self, url: str, *, new_tab: bool | None = None, **options: Unpack[WaitOptions]) -> BrowserState:
        """Opens a page and waits until it has loaded as far as `until` says and an element matches the selector
        `wait_for`, and then `wait_ms` more. `localhost` is the sandbox itself; a path is a file of the session."""
        return self._act("goto", url=url, new_tab=new_tab, **checked(options, WaitOptions))

    def click(
        self, *, button: str | None = None, count: int | None = None, **options: Unpack[ElementOptions]
    ) -> BrowserState:
        """Clicks an element, and waits for the page that the click opens, if any."""
        return self._act("click", button=button, count=count, **checked(options, ElementOptions))

    def type(
        self, value: str, *, clear: bool | None = None, submit: bool | None = None, **options: Unpack[ElementOptions]
    ) -> BrowserState:
        """Types into an element, or chooses an option of a list. The old content is replaced, unless `clear` is false.
        Without an element, types into the one that has the focus. `submit` presses Enter afterwards."""
        return self._act("type", value=value, clear=clear, submit=submit, **checked(options, ElementOptions))

    def press(self, key: str, **options: Unpack[TabOptions]) -> BrowserState:
        """Presses a key, or several at once: `Enter`, `a`, `Control+Shift+K`."""
        return self._act("press", key=key, **checked(options, TabOptions))

    def scroll(
        self,
        *,
        to: str | None = None,
        x: float | None = None,
        y: float | None = None,
        **options: Unpack[ElementOptions],
    ) -> BrowserState:
        """Scrolls to an element, `to` the `top` or `bottom`, by `x` and `y` pixels, or by one screen."""
        return self._act("scroll", to=to, x=x, y=y, **checked(options, ElementOptions))

    def upload(self, *files: str, **options: Unpack[ElementOptions]) -> BrowserState:
        """Chooses files of the session in a file input."""
        return self._act("upload", files=[*files], **checked(options, ElementOptions))

    def back(self, **options: Unpack[TabOptions]) -> BrowserState:
        """Goes back in the tab's history."""
        return self._act("back", **checked(options, TabOptions))

    def forward(self, **options: Unpack[TabOptions]) -> BrowserState:
        """Goes forward in the tab's history."""
        return self._act("forward", **checked(options, TabOptions))

    def reload(self, **options: Unpack[TabOptions]) -> BrowserState:
        """Loads the page again."""
        return self._act("reload", **checked(options, TabOptions))

    def wait(self, **options: Unpack[WaitOptions]) -> BrowserState:
        """Waits as `goto` does."""
        return self._act("wait", **checked(options, WaitOptions))

    def text(
        self,
        *,
        ref: str | None = None,
        selector: str | None = None,
        html: bool = False,
        max_chars: int | None = None,
        **options: Unpack[TabOptions],
    ) -> str:
        """The text of the page, or of an element; with `html`, its current HTML."""
        asked = checked(options, TabOptions)
        form = "html" if html else None
        state = self._act("text", ref=ref, selector=selector, format=form, max_chars=max_chars, **asked)
        return str(state.result.get("text", ""))

    def snapshot(self, *, max_chars: int | None = None, **options: Unpack[TabOptions]) -> str:
        """The page as its accessibility tree, with a `ref` for every element that can be used."""
        state = self._act("snapshot", max_chars=max_chars, **checked(options, TabOptions))
        return str(state.result.get("snapshot", ""))

    def evaluate(self, expression: str, **options: Unpack[TabOptions]) -> Any:
        """The value of a JavaScript expression in the page. Promises are awaited."""
        state = self._act("evaluate", expression=expression, **checked(options, TabOptions))
        return state.result.get("value")

    def screenshot(
        self,
        url: str | None = None,
        *,
        file: str | None = None,
        html: str | None = None,
        full_page: bool | None = None,
        width: int | None = None,
        height: int | None = None,
        scale: float | None = None,
        selector: str | None = None,
        ref: str | None = None,
        name: str | None = None,
        **options: Unpack[WaitOptions],
    ) -> Screenshot:
        """An image of the current page; or of a URL, an HTML file of the session, or HTML text, without navigating the
        current tab. The image is stored as an artifact as well.

        >>> shot = session.browser.screenshot(html="<h1>hello</h1>")
        >>> open("hello.png", "wb").write(shot.png)
        """
        state = self._act(
            "screenshot",
            url=url,
            file=file,
            html=html,
            full_page=full_page,
            width=width,
            height=height,
            scale=scale,
            selector=selector,
            ref=ref,
            name=name,
            **checked(options, WaitOptions),
        )
        path = state.result.get("path")
        for artifact in state.artifacts:
            if artifact.path == path:
                png = Artifacts(self._client, self._session_id).read(artifact)
                size = {key: state.result.get(key, 0) for key in ("width", "height", "cut_off")}
                return Screenshot(png=png, artifact=artifact, **size)
        raise ProtocolError("the server took a screenshot, but its response names no artifact for it")

    def download(
        self, url: str | None = None, *, name: str | None = None, **options: Unpack[ElementOptions]
    ) -> Download:
        """Downloads a file to `/session/downloads`: from a URL, relative to the page and with the browser's cookies, or
        by clicking an element."""
        state = self._act("download", url=url, name=name, **checked(options, ElementOptions))
        return Download.model_validate(state.result)

    def task(
        self,
        task: str,
        *,
        model: str | None = None,
        base_url: str | None = None,
        key_from: str | None = None,
        max_steps: int | None = None,
        vision: bool | None = None,
        timeout: float | None = None,
        on_step: _io.Callback[Output] | None = None,
    ) -> TaskResult:
        """Does a task that is described in natural language, with browser-use and a model with OpenAI's protocol.

        >>> done = session.browser.task("What do pears cost at http://localhost:8000?", model="gpt-5-mini",
        ...                                   base_url="https://api.openai.com/v1", on_step=print)
        >>> done.answer

        The session's network policy must allow the model's host. It can also add the API key to the requests
        (`network.inject`), so that the key never enters the sandbox. Otherwise `key_from` names the variable of the
        session (`env`) that holds the key. `on_step` is called with the log of the steps while the task runs.
        """
        fields = {
            "task": task,
            "model": model,
            "base_url": base_url,
            "key_from": key_from,
            "max_steps": max_steps,
            "vision": vision,
            "timeout": timeout,
        }
        call = _browser_calls.act(self._session_id, "task", fields)
        request = _browser_calls.as_execution(call)
        exec_id = str((call.body or {})["exec_id"])
        with Stream(self._client, request=request, session_id=self._session_id, exec_id=exec_id) as stream:
            result = stream.result(on_step)
        state = _browser_calls.state_of(result)
        return TaskResult.model_validate({**state.result, "log": result.stdout, "state": state})

    def close(self, tab: int | None = None) -> BrowserState:
        """Closes a tab; without a number, the browser, which then forgets everything."""
        return self._act("close", tab=tab)
