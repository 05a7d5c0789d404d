"""An agent with a Python sandbox in memory and no data (TMPFS_NONE).

    pip install 'belljar[langgraph]'
    python examples/simple_sandbox.py

It computes in three calls, which share variables, and saves a picture. You need neither a running server nor a model's
API key: see agents.py.
"""

from __future__ import annotations

import secrets

from agents import call, converse, model
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from belljar import SessionManager, make_code_sandbox_tool

QUESTION = "How far apart are primes below 10000? Make a picture of it."

SCRIPT = [
    call(
        "code_sandbox",
        code=(
            "primes = [n for n in range(2, 10_000) if all(n % d for d in range(2, int(n**0.5) + 1))]\n"
            "print(len(primes), 'primes, the last is', primes[-1])"
        ),
    ),
    call(
        "code_sandbox",
        code=(
            "from collections import Counter\n"
            "gaps = Counter(b - a for a, b in zip(primes, primes[1:]))\n"
            "gaps.most_common(3)"
        ),
    ),
    call(
        "code_sandbox",
        code=(
            "import matplotlib.pyplot as plt\n"
            "plt.bar(list(gaps), list(gaps.values()))\n"
            "plt.xlabel('distance to the next prime')\n"
            "plt.ylabel('how often')\n"
            "plt.savefig('/session/artifacts/gaps.png')\n"
            "plt.close()"
        ),
    ),
    "Most often they are 6 apart. Here is the picture: {link}",
]


def main() -> None:
    manager = SessionManager(session_storage="TMPFS", dataset_access="NONE")
    tool = make_code_sandbox_tool(manager, timeout_s=60)
    agent = create_agent(
        model(*SCRIPT),
        tools=[tool],
        system_prompt="You answer questions by computing. Give the user links to the pictures that you make.",
        checkpointer=InMemorySaver(),
    )
    thread = f"simple-{secrets.token_hex(4)}"
    try:
        converse(agent, QUESTION, thread)
    finally:
        manager.stop(thread)


if __name__ == "__main__":
    main()
