"""A deep agent that writes a program, runs it and fixes it, in the sandbox of its conversation.

    pip install 'belljar[deepagents]'
    python examples/deep_agent.py

Commands send their output while they run. The same thread finds the same sandbox again, from this program or from
another. You need neither a running server nor a model's API key: see agents.py.
"""

from __future__ import annotations

import secrets

from agents import call, model, show
from deepagents import create_deep_agent

from belljar.deepagents import BelljarSandbox

QUESTION = "Write a program that prints how 27 gets to 1 by Collatz's rule, and tell me the highest number on the way."

PROGRAM = """import time

n, highest = 27, 0
while n != 1
    highest = max(highest, n)
    n = 3 * n + 1 if n % 2 else n // 2
    if n > highest:
        print("a new height:", n, flush=True)
        time.sleep(0.05)
print("highest:", highest)
"""

SCRIPT = [
    call("write_file", file_path="/session/collatz.py", content=PROGRAM),
    call("execute", command="python3 /session/collatz.py"),
    call("edit_file", file_path="/session/collatz.py", old_string="while n != 1\n", new_string="while n != 1:\n"),
    call("execute", command="python3 /session/collatz.py", timeout=20),
    "A colon was missing. On its way from 27 to 1 the highest number is 9232.",
    call("execute", command="ls /session"),
    "`collatz.py` is still there.",
]


def main() -> None:
    thread = f"deep-{secrets.token_hex(4)}"
    backend = BelljarSandbox("examples", per_thread=True)
    agent = create_deep_agent(model=model(*SCRIPT), backend=backend)
    try:
        converse(agent, QUESTION, thread)
        converse(agent, "Do you still have it?", thread)
    finally:
        backend.stop_thread(thread)


def converse(agent, question: str, thread: str) -> None:
    print(f"\nYou: {question}")
    config = {"configurable": {"thread_id": thread}}
    updates = agent.stream({"messages": [("user", question)]}, config, stream_mode=["updates", "custom"])
    for mode, update in updates:
        if mode == "custom":
            print("".join(f"    ~ {line}\n" for line in update["text"].splitlines()), end="")
            continue
        for node in update.values():
            messages = node.get("messages") if isinstance(node, dict) else None
            for message in messages if isinstance(messages, list) else []:
                show(message)


if __name__ == "__main__":
    main()
