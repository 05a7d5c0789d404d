"""An agent with a shell that remembers, in a sandbox.

    pip install belljar langchain
    python examples/bash_agent.py

LangChain's own shell middleware runs commands on your machine. With `BelljarExecutionPolicy` it runs
them in a session, where there is nothing of yours. No server needs to be running, and no key of a
model needs to be set: see agents.py.
"""

from __future__ import annotations

from agents import call, converse, model
from langchain.agents import create_agent
from langchain.agents.middleware import ShellToolMiddleware

from belljar.shell_policy import BelljarExecutionPolicy

QUESTION = "Which words are the most frequent in the licence in /usr/share/common-licenses/GPL-3?"

SCRIPT = [
    call("shell", command="file=/usr/share/common-licenses/GPL-3; wc $file"),
    call(
        "shell",
        command="tr -cs '[:alpha:]' '\\n' < $file | tr A-Z a-z | grep -E '.{5,}' | sort | uniq -c | sort -rn | head -5",
    ),
    call("shell", command="whoami; ls -A /home /root; curl -sm 2 https://example.com || echo 'no way out'"),
    "Of the longer words, `license` and `program` lead. There is nobody here but me, and no network.",
]


def main() -> None:
    with BelljarExecutionPolicy(command_timeout=20) as policy:
        agent = create_agent(
            model(*SCRIPT),
            middleware=[ShellToolMiddleware(execution_policy=policy)],
            system_prompt="You answer questions with shell commands. Directory and variables stay between them.",
        )
        converse(agent, QUESTION, "bash")


if __name__ == "__main__":
    main()
