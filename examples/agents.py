"""A model for the examples: a real one if an API key is set, else one that follows a script.

    OPENAI_API_KEY=...     pip install langchain-openai
    ANTHROPIC_API_KEY=...  pip install langchain-anthropic

AGENT_MODEL selects another model, such as `openai:gpt-5` or `ollama:qwen3`.
"""

from __future__ import annotations

import os
import re
from typing import Any

from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatResult

DEFAULTS = {"OPENAI_API_KEY": "openai:gpt-5-mini", "ANTHROPIC_API_KEY": "anthropic:claude-sonnet-4-5"}


def model(*script: BaseMessage | str) -> BaseChatModel:
    named = os.environ.get("AGENT_MODEL") or next((name for key, name in DEFAULTS.items() if os.environ.get(key)), None)
    if named:
        print(f"(the model is {named})")
        return init_chat_model(named)
    print("(no API key is set, so the model is scripted; the sandbox is real)")
    return Scripted(responses=[AIMessage(answer) if isinstance(answer, str) else answer for answer in script])


def call(name: str, **args: Any) -> AIMessage:
    """A message in which the model calls a tool."""
    return AIMessage("", tool_calls=[{"name": name, "args": args, "id": os.urandom(4).hex(), "type": "tool_call"}])


class Scripted(FakeMessagesListChatModel):
    """Returns one message after another; `{link}` is the last link in an answer of a tool."""

    def bind_tools(self, tools: Any, **_: Any) -> Scripted:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        result = super()._generate(messages, *args, **kwargs)
        answers = "\n".join(message.text for message in messages if isinstance(message, ToolMessage))
        links = re.findall(r"\): (\S+://\S+)", answers)
        text = str(result.generations[0].message.content)
        if "{link}" in text:
            result.generations[0].message = AIMessage(text.replace("{link}", links[-1] if links else "(no link)"))
        return result


def converse(agent: Any, question: str, thread: str) -> None:
    """Asks a question, and prints the steps of the agent while they happen."""
    print(f"\nYou: {question}")
    config = {"configurable": {"thread_id": thread}}
    for update in agent.stream({"messages": [("user", question)]}, config, stream_mode="updates"):
        for node in update.values():
            for message in (node or {}).get("messages", []):
                show(message)


def show(message: BaseMessage) -> None:
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
