"""An agent with a shell in a sandbox, which keeps its directory and variables.

    pip install belljar langchain
    python examples/bash_agent.py

LangChain's shell middleware runs commands on your machine. With `BelljarExecutionPolicy` it runs them in a session,
which has none of your files. You need neither a running server nor a model's API key: see agents.py.
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
    "Of the longer words, `license` and `program` are the most frequent. I am alone here, without a network.",
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
