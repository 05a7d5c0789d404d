"""An agent that works with a shell, Python and files.

    pip install 'belljar[langgraph]'
    python examples/file_agent.py

All tools of a conversation work in the same sandbox: one tool runs what another has written. Files that the agent saves
in /session/artifacts are for you. You need neither a running server nor a model's API key: see agents.py.
"""

from __future__ import annotations

import secrets

from agents import call, converse, model
from langchain.agents import create_agent
from langgraph.checkpoint.memory import InMemorySaver

from belljar import BelljarToolkit

QUESTION = "Write a small Python package that counts words, with a test, and give me all of it as an archive."

PACKAGE = '''\
from collections import Counter


def count(text: str) -> Counter[str]:
    return Counter(text.split())
'''

TEST = '''\
import unittest

from words import count


class Counting(unittest.TestCase):
    def test_case_does_not_matter(self):
        self.assertEqual(count("a B b"), {"a": 1, "b": 2})
'''

SCRIPT = [
    call("make_directory", path="project/words"),
    call("write_file", path="project/words/__init__.py", content=PACKAGE),
    call("write_file", path="project/test_words.py", content=TEST),
    call("execute_shell", command="cd project && python -m unittest -q"),
    call("write_file", path="project/words/__init__.py", content=PACKAGE.replace("text.split", "text.lower().split")),
    call("execute_shell", command="cd project && python -m unittest -q && rm -r words/__pycache__ __pycache__"),
    call("list_files", path="project", recursive=True),
    call("execute_shell", command="tar -czf artifacts/words.tar.gz project"),
    call("delete_file", path="project", recursive=True),
    call("execute_python_script", code="import os; sorted(os.listdir('/session'))"),
    "At first, upper and lower case counted as different words; the test found it. Here is the archive: {link}",
]


def main() -> None:
    toolkit = BelljarToolkit()
    agent = create_agent(
        model(*SCRIPT),
        tools=toolkit.get_tools(),
        system_prompt="You are a programmer. You test what you write, and give the user a link to the result.",
        checkpointer=InMemorySaver(),
    )
    thread = f"files-{secrets.token_hex(4)}"
    try:
        converse(agent, QUESTION, thread)
    finally:
        toolkit.session_manager.stop(thread)


if __name__ == "__main__":
    main()
