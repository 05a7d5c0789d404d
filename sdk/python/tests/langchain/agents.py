"""Agents with a scripted model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatResult
from langchain_core.tools import BaseTool
from langgraph.checkpoint.memory import InMemorySaver


class ScriptedModel(FakeMessagesListChatModel):
    """Says one message after the other; `{link}` in one of them is the last link that a tool gave."""

    def bind_tools(self, tools: Any, **kwargs: Any) -> ScriptedModel:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        result = super()._generate(messages, *args, **kwargs)
        said = result.generations[0].message
        if "{link}" in str(said.content):
            links = [link for reply in messages if isinstance(reply, ToolMessage) for link in _links(reply)]
            result.generations[0].message = AIMessage(str(said.content).replace("{link}", links[-1]))
        return result


def _links(message: ToolMessage) -> list[str]:
    return re.findall(r"\): (\S+://\S+)", message.text)


def calls(*asked: tuple[str, dict[str, Any]]) -> AIMessage:
    """A message in which the model calls tools, all at once."""
    made = [
        {"name": name, "args": args, "id": f"call-{id(asked)}-{number}", "type": "tool_call"}
        for number, (name, args) in enumerate(asked)
    ]
    return AIMessage("", tool_calls=made)


def code(text: str) -> AIMessage:
    return calls(("code_sandbox", {"code": text}))


def agent(tools: Sequence[BaseTool], *script: BaseMessage | str) -> Any:
    said = [AIMessage(message) if isinstance(message, str) else message for message in script]
    return create_agent(ScriptedModel(responses=said), tools=list(tools), checkpointer=InMemorySaver())


def thread(name: str) -> Any:
    return {"configurable": {"thread_id": name}}


ASK: Any = {"messages": [("user", "go on")]}


def tool_messages(state: Any) -> list[ToolMessage]:
    return [message for message in state["messages"] if isinstance(message, ToolMessage)]


def invoke(tool: BaseTool, **args: Any) -> ToolMessage:
    """Calls a tool as a graph would, without one."""
    answered = tool.invoke({"type": "tool_call", "name": tool.name, "args": args, "id": "1"})
    assert isinstance(answered, ToolMessage)
    return answered


async def ainvoke(tool: BaseTool, **args: Any) -> ToolMessage:
    answered = await tool.ainvoke({"type": "tool_call", "name": tool.name, "args": args, "id": "1"})
    assert isinstance(answered, ToolMessage)
    return answered
