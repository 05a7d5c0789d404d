"""stdin, stdout and stderr, and what user code may do to them."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import KernelProcess


def test_output_is_complete_before_done_arrives(kernel: KernelProcess) -> None:
    result = kernel.run("import sys\nsys.stdout.write('no newline')\nsys.stderr.write('here too')")
    assert (result.stdout, result.stderr) == ("no newline", "here too")


def test_output_comes_line_by_line(kernel: KernelProcess) -> None:
    kernel.start("import time\nprint('first')\nprint('50%', end='\\r')\ntime.sleep(60)")
    kernel.wait_for_stdout("first\n50%\r")


def test_output_is_older_than_the_display_that_follows_it(kernel: KernelProcess) -> None:
    kernel.start("print('before', end='')\ndisplay(1)\nimport time; time.sleep(60)")
    head, _ = kernel.receive()
    assert head == {"op": "display", "kind": "display"}
    assert kernel.take_output()[0] == "before"


def test_anything_can_be_printed(kernel: KernelProcess) -> None:
    assert kernel.run(r"print('ü \udc80 \U0001f600')").stdout == "ü \\udc80 \U0001f600\n"


@pytest.mark.parametrize(
    "damage",
    [
        "import os; os.close(1)",
        "import os; os.close(0); os.close(1); os.close(2)",
        "import sys; sys.stdout.close()",
        "import sys; sys.stdout.detach()",
        "import sys, io; sys.stdout = io.StringIO()",
        "import sys; sys.stdout = None",
        "import sys; sys.stdout = 5; sys.stderr = 'no stream'",
        "import os; os.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
        "import os; os.set_blocking(1, False)",
        "import sys; sys.__stdout__.close(); sys.stdin.close()",
    ],
)
def test_the_next_exec_has_working_streams(kernel: KernelProcess, damage: Any) -> None:
    assert kernel.run(damage).done["op"] == "done"
    result = kernel.run("import sys, os\nprint('out'); print('err', file=sys.stderr)\nos.write(1, b'raw')\nsys.stdin.read()")
    assert (result.stdout, result.stderr, result.text) == ("out\nraw", "err\n", "''")


def test_a_full_pipe_does_not_lose_output(kernel: KernelProcess) -> None:
    result = kernel.run("for i in range(100_000): print(i)")
    assert result.stdout == "".join(f"{i}\n" for i in range(100_000))


def test_subprocesses_share_the_pipes(kernel: KernelProcess) -> None:
    result = kernel.run("import subprocess; subprocess.run('echo out; echo err >&2; cat', shell=True).returncode")
    assert (result.stdout, result.stderr, result.text) == ("out\n", "err\n", "0")


@pytest.mark.parametrize("call", ["input('name? ')", "import getpass; getpass.getpass()"])
def test_prompts_say_what_to_do_instead(kernel: KernelProcess, call: Any) -> None:
    error = kernel.run(call).error
    assert error["name"] == "EOFError"
    assert "not available here" in error["value"]
    assert "pass the value in the code" in error["value"]


def test_uncaught_exceptions_of_threads_go_to_stderr(kernel: KernelProcess) -> None:
    result = kernel.run("import threading\nt = threading.Thread(target=lambda: 1/0); t.start(); t.join()")
    assert result.status == "ok"
    assert "ZeroDivisionError" in result.stderr
