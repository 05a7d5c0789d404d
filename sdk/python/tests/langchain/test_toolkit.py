"""The toolkit: a shell, scripts and files in one session."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from agents import ainvoke, invoke
from langchain_core.messages import ToolMessage

from belljar import BelljarToolkit, SessionManager

Use = Callable[..., ToolMessage]


@pytest.fixture
def use(manager: SessionManager) -> Use:
    tools = {tool.name: tool for tool in BelljarToolkit(session_manager=manager).get_tools()}

    def call(name: str, **args: Any) -> ToolMessage:
        return invoke(tools[name], **args)

    return call


def test_all_tools_share_a_session(use: Use) -> None:
    assert use("write_file", path="src/main.py", content="print('hello')\n").text == "Wrote src/main.py (15 bytes)."
    assert use("execute_shell", command="python src/main.py").text == "hello"
    assert use("execute_python_script", code="x = open('src/main.py').read(); len(x)").text == "[result]\n15"
    assert use("execute_python_script", code="x.strip()").text == '[result]\n"print(\'hello\')"'
    assert use("read_file", path="src/main.py").text == "print('hello')"


def test_a_shell(use: Use) -> None:
    failed = use("execute_shell", command="echo out; echo err >&2; exit 3")
    assert failed.text == "out\n[stderr]\nerr\n[status]\nThe command ended with exit code 3."
    assert (failed.artifact["exit_code"], failed.artifact["stdout"]) == (3, "out\n")
    left = use("execute_shell", command="seq 3 > artifacts/numbers.txt")
    assert left.text.startswith("[artifacts]\n- numbers.txt (6 bytes, text/plain): ")
    assert list(left.artifact["artifact_map"]) == ["/session/artifacts/numbers.txt"]


def test_directories(use: Use) -> None:
    assert use("make_directory", path="a/b").text == "Created the directory a/b."
    assert use("list_files", path="a").text == "b/"
    use("write_file", path="a/b/c.txt", content="c" * 2048)
    assert use("list_files", path="a", recursive=True).text == "b/\nb/c.txt (2.0 KiB)"
    assert set(use("list_files").text.splitlines()) == {"a/", "artifacts/", "data/"}

    refused = use("delete_file", path="a")
    assert "not empty" in refused.text
    assert refused.artifact["code"] == "not_empty"
    assert use("delete_file", path="a/b/c.txt").text == "Deleted a/b/c.txt."
    assert use("delete_file", path="a", recursive=True).text == "Deleted a."
    assert "No such file" in use("list_files", path="a").text


def test_reading_in_parts(use: Use) -> None:
    use("write_file", path="long.txt", content="\n".join(map(str, range(1, 11))))
    part = use("read_file", path="long.txt", start_line=3, max_lines=2)
    assert part.text == "3\n4\n[lines 3 to 4 of 10]"
    assert "nothing in this part" in use("read_file", path="long.txt", start_line=99).text
    use("execute_shell", command="yes 0123456789abcdef | head -c 6M > huge.txt")
    huge = use("read_file", path="huge.txt").text
    assert len(huge) < 22_000
    assert "characters were cut" in huge
    assert "[only the first 4.0 MiB of 6.0 MiB can be read with this tool" in huge


def test_what_is_not_text(use: Use, manager: SessionManager) -> None:
    picture = b"\x89PNG\r\n\x1a\n" + bytes(100)
    manager.start(manager.default_key).files.write("a.png", picture)
    assert "is not a text file (image/png, 108 bytes)" in use("read_file", path="a.png").text
    tools = {tool.name: tool for tool in BelljarToolkit(session_manager=manager, images=True).get_tools()}
    seen = invoke(tools["read_file"], path="a.png")
    assert [block["type"] for block in seen.content_blocks] == ["text", "image"]


@pytest.mark.parametrize("path", ["nope.txt", "/session", "/etc/shadow", "a\0b"])
def test_files_that_cannot_be_read_are_answers(use: Use, path: str) -> None:
    answer = use("read_file", path=path)
    assert answer.text.startswith("It did not work: ")
    assert answer.artifact["status"] == "refused"


async def test_the_same_with_await(manager: SessionManager) -> None:
    tools = {tool.name: tool for tool in BelljarToolkit(session_manager=manager).get_tools()}
    await ainvoke(tools["write_file"], path="a.txt", content="a")
    assert (await ainvoke(tools["execute_shell"], command="cat a.txt")).text == "a"
    assert "not" in (await ainvoke(tools["read_file"], path="nope")).text
    await manager.aclose()
