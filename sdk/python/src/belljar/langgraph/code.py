"""The tool `code_sandbox`: Python in the sandbox of a conversation."""

from __future__ import annotations

from typing import Annotated

from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolRuntime
from pydantic import Field

from belljar.langgraph._aio import actions as aio
from belljar.langgraph._make_tool import Work, make_tool, work, work_in_session
from belljar.langgraph._render import MAX_CHARS
from belljar.langgraph._sync import actions as sync
from belljar.langgraph._tool import NO_RUNTIME, SessionKeyFn, Sessions, live
from belljar.manager import SessionManager

__all__ = ["make_code_sandbox_tool"]

# Seconds that code may run by default.
DEFAULT_TIMEOUT = 60.0

_SESSION = """\
Runs Python in the sandbox of this conversation. Variables, imports and files of earlier calls are still there: build \
on them and do not repeat earlier work.

- Print what you want to see; the value of the last expression is shown too. Output is cut when it gets long: print \
summaries (`df.head()`, `df.describe()`), not whole tables.
- To give the user a file or an image, save it in /session/artifacts (`plt.savefig('/session/artifacts/plot.png')`). \
It is copied from there when the call ends, and the answer lists it with a link that you can pass on.
- Keep other files in /session, the working directory.{data}
- numpy, pandas, pyarrow, matplotlib, scikit-learn and scipy are there. There is no network, and nothing can be \
installed.
- A call may take {timeout:g} seconds. When it fails, you get the traceback: correct the code and call again."""

_EPHEMERAL = """\
Runs Python in a new sandbox, which is removed afterwards. Nothing is kept from call to call, so each call must be \
complete, with all its imports and data.

- Print what you want to see; the value of the last expression is shown too. Output is cut when it gets long.
- To give the user a file or an image, save it in /work/artifacts (`plt.savefig('/work/artifacts/plot.png')`). The \
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
    """Makes a tool with which a model runs Python.

    >>> tool = make_code_sandbox_tool(SessionManager(), timeout_s=30)
    >>> agent = create_agent(model, tools=[tool])

    Every session key has its own sandbox. The key is `session_key_fn()`, or `session_key_fn(runtime)`, else the
    `thread_id` of the run. With `ephemeral`, every call has a new sandbox instead.

    The tool's artifact is an `ExecResult` as a dictionary, with `artifact_map` and links. With `images`, the model sees
    the images that the code displays, else those that it saves. Output is streamed while the code runs
    (`stream_mode=["tools", "custom"]`; with `tools` alone LangGraph delays it), and the model gets at most
    `max_output_chars` of it. For code that fails, the tool answers with the traceback; if the sandbox fails, it raises
    `SandboxFailure`.
    """
    manager = session_manager or SessionManager()
    sessions = Sessions(manager, session_key_fn)
    if not ephemeral:
        manager.code_key_fn = session_key_fn

    def run_code(
        code: Annotated[str, Field(description="The Python code to run. It may have many lines.")],
        runtime: ToolRuntime = NO_RUNTIME,
    ) -> Work:
        output = live(runtime)
        if ephemeral:
            return work(
                sync.run_once,
                aio.run_once,
                manager,
                code,
                timeout=timeout_s,
                on_output=output,
                images=images,
                max_chars=max_output_chars,
            )
        return work_in_session(
            sessions,
            runtime,
            sync.run_code,
            aio.run_code,
            code,
            timeout=timeout_s,
            on_output=output,
            images=images,
            max_chars=max_output_chars,
        )

    text = description or (_EPHEMERAL if ephemeral else _SESSION).format(
        timeout=timeout_s, data=_data(manager.dataset_access, ephemeral)
    )
    return make_tool(run_code, name=name, description=text)


def _data(access: str | None, ephemeral: bool) -> str:
    return "" if access is None or (ephemeral and access == "API") else _DATA.get(access, "")
