"""Tools for agents that work in a sandbox. Needs `pip install belljar[langgraph]`.

>>> from langchain.agents import create_agent
>>> from belljar.langgraph import SessionManager, make_code_sandbox_tool
>>> agent = create_agent("openai:gpt-5", tools=[make_code_sandbox_tool(SessionManager())])

Each thread of the graph has its own session, which is found by its `thread_id` as long as it lives. Tools work with and
without `await`, return text for the model and an artifact for programs, and stream output while code runs. If code
fails, the tool answers with the traceback; if the sandbox fails, it raises `SandboxFailure`.
"""

from __future__ import annotations

try:
    import langchain_core.tools  # noqa: F401
    import langgraph.prebuilt  # noqa: F401
except ImportError as error:
    raise ImportError(f"{error.msg}: tools for agents need `pip install 'belljar[langgraph]'`") from error

from belljar.config import Config
from belljar.langgraph._fetch import FetchFn
from belljar.langgraph._tool import SandboxFailure, SessionKeyFn
from belljar.langgraph.code import make_code_sandbox_tool
from belljar.langgraph.datasets import (
    make_export_datasets_tool,
    make_list_datasets_tool,
    make_select_dataset_tool,
)
from belljar.manager import ExecResult, SessionManager

__all__ = [
    "Config",
    "ExecResult",
    "FetchFn",
    "SandboxFailure",
    "SessionKeyFn",
    "SessionManager",
    "make_code_sandbox_tool",
    "make_export_datasets_tool",
    "make_list_datasets_tool",
    "make_select_dataset_tool",
]
