"""`code_sandbox`: Python in a sealed computer of the conversation's own."""

from __future__ import annotations

from typing import Annotated

from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolRuntime
from pydantic import Field

from belljar._aio.session import AsyncSession
from belljar._sync.session import Session
from belljar.langgraph._pictures import ashown_images, shown_images
from belljar.langgraph._render import MAX_CHARS, answer
from belljar.langgraph._tool import NO_RUNTIME, Answer, SessionKeyFn, Sessions, infrastructure, live, make_tool
from belljar.manager import ExecResult, Opened, SessionManager

__all__ = ["make_code_sandbox_tool"]

# Seconds that code may run unless told.
DEFAULT_TIMEOUT = 60.0

_SESSION = """\
Runs Python in a sandbox that belongs to this conversation and remembers: variables, imports and files of earlier \
calls are still there, so build on them and do not repeat earlier work.

- Print what you want to see; the value of the last expression is shown too. Output is cut when it gets long: print \
summaries (`df.head()`, `df.describe()`), not whole tables.
- To give the user a file or a picture, save it in /session/artifacts (`plt.savefig('/session/artifacts/plot.png')`). \
It is taken from there when the call ends, and the answer lists it with a link that you can pass on.
- Keep other files in /session, the working directory.{data}
- numpy, pandas, pyarrow, matplotlib, scikit-learn and scipy are there. There is no network, and nothing can be \
installed.
- A call may take {timeout:g} seconds. When it fails, you get the traceback: correct the code and call again."""

_EPHEMERAL = """\
Runs Python in a fresh sandbox, which is gone afterwards: nothing is remembered from call to call, so each call must \
be complete, with all its imports and data.

- Print what you want to see; the value of the last expression is shown too. Output is cut when it gets long.
- To give the user a file or a picture, save it in /work/artifacts (`plt.savefig('/work/artifacts/plot.png')`). The \
answer lists it with a link that you can pass on.{data}
- numpy, pandas, pyarrow, matplotlib, scikit-learn and scipy are there. There is no network, and nothing can be \
installed.
- A call may take {timeout:g} seconds. When it fails, you get the traceback: correct the code and call again."""

_DATA = {
    "LOCAL_RO": "\n- Datasets are in /data, which is read-only.",
    "API": "\n- Datasets that were selected are in /session/data; so is what you want to have exported.",
}


def make_code_sandbox_tool(
    session_manager: SessionManager | None = None,
    session_key_fn: SessionKeyFn | None = None,
    timeout_s: float = DEFAULT_TIMEOUT,
    *,
    ephemeral: bool = False,
    images: bool = False,
    max_output_chars: int = MAX_CHARS,
    name: str = "code_sandbox",
    description: str | None = None,
) -> BaseTool:
    """A tool with which a model runs Python.

    >>> tool = make_code_sandbox_tool(SessionManager(), timeout_s=30)
    >>> agent = create_agent(model, tools=[tool])

    Every session key has a sandbox of its own: `session_key_fn()`, or `session_key_fn(runtime)`, else
    the `thread_id` of the run. With `ephemeral`, every call has one of its own instead.

    The tool's artifact is an `ExecResult` as a dictionary, `artifact_map` and links included. With
    `images`, pictures are shown to the model: those that the code displays, else those it saves.
    Output is streamed while it comes (`stream_mode=["tools", "custom"]`; LangGraph holds back `tools`
    alone), and cut at `max_output_chars` for the model. Code that fails is an answer; a sandbox that
    fails raises `SandboxFailure`.
    """
    manager = session_manager or SessionManager()
    sessions = Sessions(manager, session_key_fn)
    if not ephemeral:
        manager.code_key_fn = session_key_fn

    def run_code(
        code: Annotated[str, Field(description="The Python code to run. It may have many lines.")],
        runtime: ToolRuntime = NO_RUNTIME,
    ) -> Answer:
        def report(result: ExecResult) -> Answer:
            pictures = shown_images(manager.client, result) if images else []
            return answer(result, pictures, max_output_chars)

        def execute(opened: Opened[Session]) -> Answer:
            result = opened.session.run_code(code, timeout=timeout_s, on_output=live(runtime))
            return report(opened.result(result))

        if not ephemeral:
            return sessions.call(runtime, execute)
        with infrastructure():
            return report(manager.run(code, timeout_s, on_output=live(runtime)))

    async def arun_code(
        code: Annotated[str, Field(description="The Python code to run. It may have many lines.")],
        runtime: ToolRuntime = NO_RUNTIME,
    ) -> Answer:
        async def report(result: ExecResult) -> Answer:
            pictures = await ashown_images(manager.async_client, result) if images else []
            return answer(result, pictures, max_output_chars)

        async def execute(opened: Opened[AsyncSession]) -> Answer:
            result = await opened.session.run_code(code, timeout=timeout_s, on_output=live(runtime))
            return await report(opened.result(result))

        if not ephemeral:
            return await sessions.acall(runtime, execute)
        with infrastructure():
            return await report(await manager.arun(code, timeout_s, on_output=live(runtime)))

    told = description or (_EPHEMERAL if ephemeral else _SESSION).format(
        timeout=timeout_s, data=_data(manager.dataset_access, ephemeral)
    )
    return make_tool(run_code, arun_code, name=name, description=told)


def _data(access: str | None, ephemeral: bool) -> str:
    return "" if access is None or (ephemeral and access == "API") else _DATA.get(access, "")
