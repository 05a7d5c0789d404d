# Made of ../_aio/browser.py by scripts/generate_sync.py; change that one.
"""The browser of a session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from belljar import _browser_calls
from belljar._sync import _io
from belljar._sync.artifacts import Artifacts
from belljar._sync.stream import Stream
from belljar._browser_calls import BrowserState, Download, Screenshot, TaskResult, Until
from belljar.errors import ProtocolError
from belljar.events import Output

if TYPE_CHECKING:
    from belljar._sync.client import Client


class Browser:
    """The browser of a session (`session.browser`): Chromium, inside. It starts with the first action and is stopped
    when nobody uses it; what it shows is kept from action to action.

    >>> session.browser.goto("http://localhost:8000")
    >>> session.browser.click(text="Prices")
    >>> print(session.browser.snapshot())

    Elements are named by `ref` of the last snapshot, by CSS `selector`, or by the `text` that they say. What cannot be
    done raises `BrowserError`, whose `code` says why.
    """

    def __init__(self, client: Client, session_id: str) -> None:
        self._client = client
        self._session_id = session_id

    def _act(self, action: str, **fields: Any) -> BrowserState:
        return self._client._do(_browser_calls.act(self._session_id, action, fields))

    def status(self) -> BrowserState:
        """Whether it runs, and what its tabs show. Starts nothing."""
        return self._client._do(_browser_calls.status(self._session_id))

    def goto(
        self,
        url: str,
        *,
        until: Until | None = None,
        wait_for: str | None = None,
        wait_ms: int | None = None,
        new_tab: bool | None = None,
        tab: int | None = None,
        timeout: float | None = None,
    ) -> BrowserState:
        """Opens a page, and waits until it has come far enough: `until`, an element for the selector `wait_for`, and
        `wait_ms` after that. `localhost` is the sandbox itself; a path is a file of the session."""
        return self._act(
            "goto", url=url, until=until, wait_for=wait_for, wait_ms=wait_ms, new_tab=new_tab, tab=tab, timeout=timeout
        )

    def click(
        self,
        *,
        ref: str | None = None,
        selector: str | None = None,
        text: str | None = None,
        button: str | None = None,
        count: int | None = None,
        tab: int | None = None,
        timeout: float | None = None,
    ) -> BrowserState:
        """Clicks an element, and waits for the page that it leads to."""
        where = {"ref": ref, "selector": selector, "text": text}
        return self._act("click", **where, button=button, count=count, tab=tab, timeout=timeout)

    def type(
        self,
        value: str,
        *,
        ref: str | None = None,
        selector: str | None = None,
        text: str | None = None,
        clear: bool | None = None,
        submit: bool | None = None,
        tab: int | None = None,
        timeout: float | None = None,
    ) -> BrowserState:
        """Types into an element, over what is there unless `clear` is false, or chooses an option of a list. Without an
        element: into whatever has the focus. `submit` presses Enter afterwards."""
        where = {"ref": ref, "selector": selector, "text": text}
        return self._act("type", value=value, **where, clear=clear, submit=submit, tab=tab, timeout=timeout)

    def press(self, key: str, *, tab: int | None = None, timeout: float | None = None) -> BrowserState:
        """Presses a key, or several at once: `Enter`, `a`, `Control+Shift+K`."""
        return self._act("press", key=key, tab=tab, timeout=timeout)

    def scroll(
        self,
        *,
        ref: str | None = None,
        selector: str | None = None,
        text: str | None = None,
        to: str | None = None,
        x: float | None = None,
        y: float | None = None,
        tab: int | None = None,
    ) -> BrowserState:
        """Scrolls to an element, `to` the `top` or `bottom`, by pixels, or by a screen."""
        where = {"ref": ref, "selector": selector, "text": text}
        return self._act("scroll", **where, to=to, x=x, y=y, tab=tab)

    def upload(
        self,
        *files: str,
        ref: str | None = None,
        selector: str | None = None,
        text: str | None = None,
        tab: int | None = None,
    ) -> BrowserState:
        """Chooses files of the session for an element that takes files."""
        return self._act("upload", files=[*files], ref=ref, selector=selector, text=text, tab=tab)

    def back(self, *, tab: int | None = None, timeout: float | None = None) -> BrowserState:
        """Goes back."""
        return self._act("back", tab=tab, timeout=timeout)

    def forward(self, *, tab: int | None = None, timeout: float | None = None) -> BrowserState:
        """Goes forward again."""
        return self._act("forward", tab=tab, timeout=timeout)

    def reload(self, *, tab: int | None = None, timeout: float | None = None) -> BrowserState:
        """Loads the page again."""
        return self._act("reload", tab=tab, timeout=timeout)

    def wait(
        self,
        *,
        until: Until | None = None,
        wait_for: str | None = None,
        wait_ms: int | None = None,
        tab: int | None = None,
        timeout: float | None = None,
    ) -> BrowserState:
        """Waits for something, as `goto` does."""
        return self._act("wait", until=until, wait_for=wait_for, wait_ms=wait_ms, tab=tab, timeout=timeout)

    def text(
        self,
        *,
        ref: str | None = None,
        selector: str | None = None,
        html: bool = False,
        max_chars: int | None = None,
        tab: int | None = None,
        timeout: float | None = None,
    ) -> str:
        """What the page, or an element of it, says; with `html`, its source as it is now."""
        format = "html" if html else None
        state = self._act(
            "text", ref=ref, selector=selector, format=format, max_chars=max_chars, tab=tab, timeout=timeout
        )
        return str(state.result.get("text", ""))

    def snapshot(
        self, *, max_chars: int | None = None, tab: int | None = None, timeout: float | None = None
    ) -> str:
        """The page as its accessibility tree, with a `ref` for everything that can be used."""
        state = self._act("snapshot", max_chars=max_chars, tab=tab, timeout=timeout)
        return str(state.result.get("snapshot", ""))

    def evaluate(self, expression: str, *, tab: int | None = None, timeout: float | None = None) -> Any:
        """The value of a JavaScript expression in the page. Promises are waited for."""
        return (self._act("evaluate", expression=expression, tab=tab, timeout=timeout)).result.get("value")

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
        until: Until | None = None,
        wait_for: str | None = None,
        wait_ms: int | None = None,
        name: str | None = None,
        tab: int | None = None,
        timeout: float | None = None,
    ) -> Screenshot:
        """A picture of the page that is there, or of a URL, an HTML file of the session, or HTML itself, which the
        current tab does not go to. It becomes an artifact as well.

        >>> picture = session.browser.screenshot(html="<h1>hello</h1>")
        >>> open("hello.png", "wb").write(picture.png)
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
            until=until,
            wait_for=wait_for,
            wait_ms=wait_ms,
            name=name,
            tab=tab,
            timeout=timeout,
        )
        path = state.result.get("path")
        for artifact in state.artifacts:
            if artifact.path == path:
                png = Artifacts(self._client, self._session_id).read(artifact)
                told = {key: state.result.get(key, 0) for key in ("width", "height", "cut_off")}
                return Screenshot(png=png, artifact=artifact, **told)
        raise ProtocolError("the server took a picture and did not say where it is")

    def download(
        self,
        url: str | None = None,
        *,
        ref: str | None = None,
        selector: str | None = None,
        text: str | None = None,
        name: str | None = None,
        tab: int | None = None,
        timeout: float | None = None,
    ) -> Download:
        """Downloads a file to `/session/downloads`: by its URL, with the browser's cookies and relative to the page, or
        by what is to be clicked."""
        state = self._act(
            "download", url=url, ref=ref, selector=selector, text=text, name=name, tab=tab, timeout=timeout
        )
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
        """Has a task done that is said in natural language, by browser-use and a model that speaks OpenAI's protocol.

        >>> done = session.browser.task("What do pears cost at http://localhost:8000?", model="gpt-5-mini",
        ...                                   base_url="https://api.openai.com/v1", on_step=print)
        >>> done.answer

        The session's network policy must allow the model's host, and can add the key on its way (`network.inject`), so
        that it never enters the sandbox; otherwise `key_from` names the variable of the session (`env`) that has it.
        `on_step` hears the log of its steps as it is written.
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
        ask = _browser_calls.as_execution(call)
        exec_id = str((call.body or {})["exec_id"])
        with Stream(self._client, ask=ask, session_id=self._session_id, exec_id=exec_id) as stream:
            result = stream.result(on_step)
        state = _browser_calls.state_of(result)
        return TaskResult.model_validate({**state.result, "log": result.stdout, "state": state})

    def close(self, tab: int | None = None) -> BrowserState:
        """Closes a tab, or the browser: it forgets everything, and the next action starts another."""
        return self._act("close", tab=tab)
