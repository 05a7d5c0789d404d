"""`langgraph-sandbox`: a chat with an agent that has a sandbox.

```text
  line ──▶ /command ──▶ handled here
   │
   └─────▶ agent ──▶ model ◀──▶ tools ──▶ session
             Ctrl-C interrupts the code in the session; a second Ctrl-C ends the turn
```

Settings are those of `Config`: the environment and `.env` in the current directory, which may hold the model's API key
too. An error is printed as one sentence, and the conversation goes on.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from belljar import _settings, local
from belljar._version import __version__
from belljar.config import Config
from belljar.errors import BelljarError
from belljar.manager import SessionManager

if TYPE_CHECKING:
    from langchain_core.messages import BaseMessage
    from langchain_core.tools import BaseTool

_PROMPT = "\nYou: "
_HELP = """\
Type a question, or one of these:
  /artifacts   list the files that the agent has saved
  /datasets    list the datasets
  /state       list the variables of the sandbox's Python
  /reset       start a new sandbox and a new conversation
  /help        show this
  /exit        end; the same as `exit`, `quit` and Ctrl-D"""
# Also the ways to leave Python.
_LEAVING = ("/exit", "/quit", "exit", "quit", "exit()", "quit()")
_SYSTEM = "You answer questions by computing in a sandbox. Give the user links to the files and pictures that you make."
_MISSING = "langgraph-sandbox needs LangChain: pip install 'belljar[langgraph]'"
# The exit code of shells for Ctrl-C.
_INTERRUPTED = 130


def main() -> int:
    asked = _arguments()
    try:
        # Ctrl-C before the conversation begins ends the program.
        return _Conversation(_config(asked.env)).run()
    except (BelljarError, ImportError, OSError, UnicodeDecodeError) as error:
        print(f"langgraph-sandbox: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print()
        return _INTERRUPTED


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="langgraph-sandbox",
        description="Chat with an agent that has a sandbox. Without an API key for a model, it follows a script.",
    )
    parser.add_argument("--env", type=Path, metavar="FILE", help="settings and keys [default: .env, if there is one]")
    parser.add_argument("--version", action="version", version=f"belljar {__version__}")
    return parser.parse_args()


def _config(file: Path | None) -> Config:
    """The settings. API keys are put into the environment, where the packages of models look for them."""
    config = Config.from_env(file)
    named = file or Path(".env")
    if named.is_file():
        for name, value in _settings.of_file(named).items():
            if (value and name.endswith(("_API_KEY", "_BASE_URL"))) or name == "AGENT_MODEL":
                os.environ.setdefault(name, value)
    return config


class _Conversation:
    def __init__(self, config: Config) -> None:
        try:
            from belljar.console import _model
        except ImportError as error:
            raise ImportError(_MISSING) from error
        self._config = config
        self._manager = SessionManager.from_config(config)
        self._chosen = _model.choose()
        self._tools = _tools(self._manager)
        self._begin()

    def _begin(self) -> None:
        from langchain.agents import create_agent
        from langgraph.checkpoint.memory import InMemorySaver

        self._manager.default_key = self._key = f"demo-{os.urandom(4).hex()}"
        self._agent: Any = create_agent(
            self._chosen.model, tools=self._tools, system_prompt=_SYSTEM, checkpointer=InMemorySaver()
        )

    def run(self) -> int:
        # Now, so that a problem with the server shows before the first question.
        self._manager.start(self._key)
        try:
            self._introduce()
            for line in _lines():
                if line and not self._answer(line):
                    break
        finally:
            self._end()
        return 0

    def _introduce(self) -> None:
        print(f"Belljar {__version__}: an agent with its own sandbox ({self._config.mode})")
        print(f"  model    {self._chosen.name}")
        print(f"  sandbox  {self._manager.client.url}, session {self._key}")
        print(f"  tools    {', '.join(tool.name for tool in self._tools)}")
        if not local.is_set_up() and self._config.url == Config.url:
            print("  packages none: `sandbox-setup` installs numpy, pandas, matplotlib and more for sandboxes")
        if self._chosen.is_scripted:
            print("Type Python to run it, or `demo` for three steps with an image.", end=" ")
        print("/help shows more, `exit` or Ctrl-D ends.", flush=True)

    def _answer(self, line: str) -> bool:
        """False if the conversation ends."""
        if line in _LEAVING:
            return False
        try:
            if line.startswith("/"):
                self._command(line)
            else:
                with self._interruptible():
                    self._turn(line)
        except KeyboardInterrupt:
            print("\n(cancelled)")
        except Exception as error:
            # Packages of models raise all kinds of errors; the conversation goes on.
            print(f"\nIt did not work: {type(error).__name__}: {error}")
        sys.stdout.flush()
        return True

    def _command(self, line: str) -> None:
        commands = {"/artifacts": self._artifacts, "/datasets": self._datasets, "/state": self._state}
        if line == "/reset":
            self._manager.stop(self._key)
            self._begin()
            print("This is a new sandbox and a new conversation.")
        elif line in commands:
            commands[line]()
        else:
            print(_HELP if line == "/help" else f"There is no `{line}`.\n{_HELP}")

    def _artifacts(self) -> None:
        found = self._manager.start(self._key).artifacts.list()
        for artifact in found:
            where = artifact.host_path or artifact.url
            print(f"  {artifact.name} ({artifact.size} bytes, {artifact.mime}): {where}")
        if not found:
            print("None yet. Files that the agent saves in /session/artifacts are kept.")

    def _datasets(self) -> None:
        found = self._manager.start(self._key).datasets.list()
        for dataset in found.datasets:
            print(f"  {dataset.path} ({dataset.size} bytes)")
        if not found.datasets:
            print(f"None. DATASET_ACCESS is {self._config.dataset_access}; other values are NONE, LOCAL_RO and API.")

    def _state(self) -> None:
        variables = self._manager.start(self._key).state().variables
        for variable in variables:
            print(f"  {variable.name}: {variable.type} = {variable.preview}")
        if not variables:
            print("No variables.")

    def _turn(self, question: str) -> None:
        config = {"configurable": {"thread_id": self._key}}
        for update in self._agent.stream({"messages": [("user", question)]}, config, stream_mode="updates"):
            for node in update.values():
                for message in (node or {}).get("messages", []):
                    self._show(message)

    def _show(self, message: BaseMessage) -> None:
        from langchain_core.messages import ToolMessage

        if isinstance(message, ToolMessage):
            print("\n".join(f"    | {line}" for line in message.text.splitlines()))
            for artifact in (message.artifact or {}).get("artifacts", []):
                print(f"    * {artifact['name']} is at {artifact['host_path']}")
            return
        for asked in getattr(message, "tool_calls", []):
            print(f"\nAgent calls {asked['name']}:")
            for value in asked["args"].values():
                print("\n".join(f"    > {line}" for line in str(value).splitlines()))
        if message.text:
            print(f"\nAgent: {message.text}")

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Ctrl-C interrupts the code in the session, which the model sees; a second Ctrl-C ends the turn."""
        is_second = threading.Event()

        def interrupted(_signal: int, _frame: FrameType | None) -> None:
            if is_second.is_set():
                raise KeyboardInterrupt
            is_second.set()
            # In a thread: the interrupted code may hold locks that the call needs.
            threading.Thread(target=self._interrupt, daemon=True).start()
            print("\n(interrupting the sandbox; a second Ctrl-C cancels the turn)", flush=True)

        before = signal.signal(signal.SIGINT, interrupted)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def _interrupt(self) -> None:
        with suppress(BelljarError):
            self._manager.start(self._key).interrupt()

    def _end(self) -> None:
        with suppress(BelljarError):
            directory = self._manager.start(self._key).info.directory
            self._manager.stop(self._key)
            if directory is not None:
                print(f"Its files are in {directory}")
        self._manager.close()


def _tools(manager: SessionManager) -> list[BaseTool]:
    from belljar import langgraph

    tools = [langgraph.make_code_sandbox_tool(manager)]
    if manager.dataset_access == "API":
        tools.append(langgraph.make_select_dataset_tool(manager))
        tools.append(langgraph.make_export_datasets_tool(manager))
    if manager.dataset_access != "NONE":
        tools.append(langgraph.make_list_datasets_tool(manager))
    return tools


def _lines() -> Iterator[str]:
    """Lines of standard input."""
    is_typed = sys.stdin.isatty()
    if is_typed:
        with suppress(ImportError):
            import readline  # noqa: F401  for arrow keys and history
    while True:
        try:
            line = input(_PROMPT).strip()
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("\n(Ctrl-D ends)", end="", flush=True)
            continue
        except UnicodeDecodeError:
            print("\nThat is not UTF-8.", end="", flush=True)
            continue
        if not is_typed:
            print(line)
        yield line


if __name__ == "__main__":
    sys.exit(main())
