"""Cells that take input: the guest is asked for one line at a time."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import KernelProcess


class Answers:
    """Runs a cell and answers its questions with these lines; `None` is the end of the input."""

    def __init__(self, kernel: KernelProcess, code: str, *lines: str | None) -> None:
        self.questions: list[tuple[str, bool]] = []
        kernel.start(code, stdin=True)
        left = [b"" if line is None else line.encode() for line in lines]
        messages = []
        while True:
            head, body = kernel.receive()
            if head["op"] == "done":
                break
            if head["op"] == "input":
                question = json.loads(body)
                self.questions.append((question["prompt"], question["password"]))
                kernel.send({"op": "input", "exec_id": "x1"}, left.pop(0))
            else:
                messages.append((head, body))
        self.left = left
        self.status = head["status"]
        self.stdout, self.stderr = kernel.take_output()
        bodies = {head.get("kind", head["op"]): json.loads(body) for head, body in messages}
        self.text = bodies["result"]["data"]["text/plain"] if "result" in bodies else None
        self.error: Any = bodies.get("error")


def test_input_asks_and_gets_a_line(kernel: KernelProcess) -> None:
    cell = Answers(kernel, "print('before')\nname = input('Name? ')\nname", "Ada\n")
    assert (cell.text, cell.questions, cell.stdout) == ("'Ada'", [("Name? ", False)], "before\n")


def test_what_was_printed_comes_before_the_question(kernel: KernelProcess) -> None:
    kernel.start("print('first', end='')\ninput()", stdin=True)
    assert kernel.receive()[0] == {"op": "input"}
    assert kernel.take_output()[0] == "first"
    kernel.send({"op": "input", "exec_id": "x1"}, b"\n")
    assert kernel.finish().text == "''"


def test_getpass_says_that_it_wants_a_password(kernel: KernelProcess) -> None:
    cell = Answers(kernel, "import getpass\ngetpass.getpass()", "secret\n")
    assert (cell.text, cell.questions, cell.stdout) == ("'secret'", [("Password: ", True)], "")


def test_stdin_can_be_read_in_every_way(kernel: KernelProcess) -> None:
    code = "import sys\n[sys.stdin.readline(), next(sys.stdin), sys.stdin.read(2), input(), list(sys.stdin), sys.stdin.read()]"
    cell = Answers(kernel, code, "one\n", "two\n", "three\n", "four\n", "five", None)
    assert cell.text == repr(["one\n", "two\n", "th", "ree", ["four\n", "five"], ""])
    assert cell.left == []


def test_bytes_can_be_read_too(kernel: KernelProcess) -> None:
    cell = Answers(kernel, "import sys\nsys.stdin.buffer.readline(), sys.stdin.fileno(), sys.stdin.isatty()", "\u00fc\n")
    assert cell.text == repr(("\u00fc\n".encode(), 0, False))


def test_the_end_of_the_input_is_an_eoferror_and_for_ever(kernel: KernelProcess) -> None:
    cell = Answers(kernel, "import sys\nprint(repr(sys.stdin.read()))\ninput('more? ')", "rest", None)
    assert (cell.stdout, cell.error["name"], len(cell.questions)) == ("'rest'\n", "EOFError", 2)


def test_a_line_without_an_end_is_completed_by_the_next_answer(kernel: KernelProcess) -> None:
    cell = Answers(kernel, "input('long? ')", "a" * 70_000, "b\n")
    assert cell.text == repr("a" * 70_000 + "b")


def test_what_a_cell_leaves_unread_is_not_for_the_next(kernel: KernelProcess) -> None:
    Answers(kernel, "import sys\nsys.stdin.read(1)", "leftover\n")
    assert Answers(kernel, "input()", "fresh\n").text == "'fresh'"


def test_an_answer_that_comes_too_late_is_nobodys(kernel: KernelProcess) -> None:
    kernel.send({"op": "input", "exec_id": "x1"}, b"late\n")
    kernel.start("input()", stdin=True, exec_id="x2")
    assert kernel.receive()[0] == {"op": "input"}
    kernel.send({"op": "input", "exec_id": "x1"}, b"also late\n")
    kernel.send({"op": "input", "exec_id": "x2"}, b"right\n")
    assert kernel.finish().text == "'right'"


@pytest.mark.parametrize("code", ["input('name? ')", "import getpass; getpass.getpass()", "__import__('sys').stdin.readline() or 1/0"])
def test_without_input_nothing_is_asked(kernel: KernelProcess, code: str) -> None:
    Answers(kernel, "input()", "x\n")
    result = kernel.run(code)
    assert result.status == "error"
    assert [head["op"] for head, _ in result.messages] == ["error"]


def test_a_question_can_be_interrupted_and_the_kernel_lives_on(kernel: KernelProcess) -> None:
    kernel.run("x = 'kept'")
    kernel.start("input('never answered ')", stdin=True)
    assert kernel.receive()[0] == {"op": "input"}
    kernel.interrupt()
    result = kernel.finish()
    assert (result.status, result.error["name"]) == ("interrupted", "KeyboardInterrupt")
    assert "belljar" not in result.error["traceback"]
    assert Answers(kernel, "x + input()", "!\n").text == "'kept!'"


def test_an_interrupt_that_is_caught_loses_no_line(kernel: KernelProcess) -> None:
    kernel.start("try:\n    input('one ')\nexcept KeyboardInterrupt:\n    pass\n[input('two '), input('three ')]", stdin=True)
    assert kernel.receive()[0] == {"op": "input"}
    kernel.interrupt()
    assert kernel.receive()[0] == {"op": "input"}
    kernel.send({"op": "input", "exec_id": "x1"}, b"a\n")
    assert kernel.receive()[0] == {"op": "input"}
    kernel.send({"op": "input", "exec_id": "x1"}, b"b\n")
    assert kernel.finish().text == "['a', 'b']"


def test_displays_and_questions_do_not_disturb_each_other(kernel: KernelProcess) -> None:
    kernel.start("for n in range(3): display(n); input(n)", stdin=True, acknowledges=True)
    for n in range(3):
        head, _ = kernel.receive()
        assert (head["op"], head["wait"]) == ("display", True)
        if n == 1:
            # Typed ahead, before anything was asked.
            kernel.send({"op": "input", "exec_id": "x1"}, b"early\n")
        kernel.send({"op": "seen"})
        if n != 1:
            assert kernel.receive()[0] == {"op": "input"}
            kernel.send({"op": "input", "exec_id": "x1"}, b"line\n")
    assert kernel.finish().status == "ok"


def test_a_stdin_of_the_codes_own_is_respected(kernel: KernelProcess) -> None:
    cell = Answers(kernel, "import io, sys\nsys.stdin = io.StringIO('mine\\n')\ninput('? ')")
    assert (cell.text, cell.questions, cell.stdout) == ("'mine'", [], "? ")
    assert Answers(kernel, "input()", "asked\n").text == "'asked'"


def test_threads_and_children_cannot_ask(kernel: KernelProcess) -> None:
    code = "import threading\ndef f():\n    try: input()\n    except EOFError as e: print(e)\nt = threading.Thread(target=f); t.start(); t.join()"
    assert "main thread" in Answers(kernel, code).stdout
    code = "import os\npid = os.fork()\nif pid == 0:\n    try: input()\n    except EOFError: os._exit(7)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    assert Answers(kernel, code).text == "7"


def test_programs_find_no_input(kernel: KernelProcess) -> None:
    assert Answers(kernel, "import subprocess\nsubprocess.run('cat', capture_output=True).stdout").text == "b''"
