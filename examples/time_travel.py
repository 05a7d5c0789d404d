"""A conversation that goes back two steps and continues differently, together with its sandbox.

    pip install 'belljar[langgraph]'
    python examples/time_travel.py

LangGraph makes a checkpoint of the graph at every step, and the sandbox makes one after every execution; the tool's
answer names it. So a thread that continues from an earlier step finds the variables and files of that step, and the
first branch can be continued too. You need neither a running server nor a model's API key: see agents.py.
"""

from __future__ import annotations

import secrets
from typing import Any

from agents import call, model, show
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from belljar.langgraph import SessionManager, make_code_sandbox_tool

SCRIPT = [
    call("code_sandbox", code="prices = [9, 12, 30]\nopen('report.txt', 'w').write('three prices')\nprint(prices)"),
    call("code_sandbox", code="prices = [price * 2 for price in prices]\nprint(prices)"),
    call("code_sandbox", code="open('report.txt', 'a').write(', doubled')\ntotal = sum(prices)\nprint(total)"),
    "Doubled, they come to 102.",
    # The second branch, from the step before they were doubled.
    call("code_sandbox", code="total = sum(prices)\nprint(total, open('report.txt').read())"),
    "As they are, they come to 51.",
    # The first branch again.
    call("code_sandbox", code="print(total, prices, open('report.txt').read())"),
    "They were doubled there.",
]


def main() -> None:
    manager = SessionManager(checkpoints=True)
    agent = create_agent(model(*SCRIPT), tools=[make_code_sandbox_tool(manager)], checkpointer=InMemorySaver())
    thread = f"travel-{secrets.token_hex(4)}"
    now: Any = {"configurable": {"thread_id": thread}}
    try:
        ask(agent, now, "Note the prices 9, 12 and 30, double them, and add them up.")
        there = agent.get_state(now).config
        # After the first answer of the tool: two steps of the sandbox ago.
        answers = [state for state in agent.get_state_history(now) if state.next == ("model",)]
        then = next(state for state in answers if tools_answered(state) == 1).config
        print("\n--- two steps back, and a second branch ---")
        ask(agent, then, "Do not double them. Just add them up.")
        print("\n--- the first branch again ---")
        ask(agent, there, "What was the total?")
    finally:
        manager.stop(thread)
        manager.close()


def tools_answered(state: Any) -> int:
    return sum(message.type == "tool" for message in state.values["messages"])


def ask(agent: Any, config: Any, question: str) -> None:
    print(f"\nYou: {question}")
    for update in agent.stream({"messages": [("user", question)]}, config, stream_mode="updates"):
        for node in update.values():
            for message in (node or {}).get("messages", []):
                show(message)


if __name__ == "__main__":
    main()
