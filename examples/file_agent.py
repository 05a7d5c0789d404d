"""An agent that works with a shell, scripts and files, as on a computer of its own.

    pip install 'belljar[langgraph]'
    python examples/file_agent.py

All tools of a conversation work in the same sandbox: what one writes, another runs. What the agent
leaves in /session/artifacts is yours. No server needs to be running, and no key of a model needs to
be set: see agents.py.
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
    call("execute_python_script", code="import os; os.listdir('/session')"),
    "Upper and lower case were told apart at first; the test found it. Here is the archive: {link}",
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
