"""What a cell gives back: results, state, errors, exit codes."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import MAIN, TIMEOUT, KernelProcess, needs_ipython


def test_hello_names_the_interpreter(kernel: KernelProcess) -> None:
    greeting = kernel.greeting
    assert greeting["protocol"] == 1
    assert greeting["language"] == "python"
    assert greeting["language_version"] == "{}.{}.{}".format(*sys.version_info)
    assert greeting["implementation"] == "cpython"
    assert greeting["pid"] == kernel.process.pid


def test_last_expression_is_the_result_and_state_is_kept(kernel: KernelProcess) -> None:
    assert kernel.run("x = 20").text is None
    result = kernel.run("x += 1\nx * 2")
    assert (result.text, result.status, result.exit_code) == ("42", "ok", 0)
    assert result.done["execution_count"] == 2
    assert result.done["exec_id"] == "x1"


def test_result_is_kept_in_underscore(kernel: KernelProcess) -> None:
    kernel.run("6 * 7")
    assert kernel.run("_ + 1").text == "43"


def test_underscore_of_the_user_is_left_alone(kernel: KernelProcess) -> None:
    kernel.run("_ = 'mine'")
    kernel.run("6 * 7")
    assert kernel.run("_").text == "'mine'"


@pytest.mark.parametrize("code", ["5;", "5 ; # shown?", "(5);", "'ü' ;", "None", "x = 5", "", "# nothing", "5\nx = 1"])
def test_no_result_without_a_value_to_show(kernel: KernelProcess, code: str) -> None:
    result = kernel.run(code)
    assert (result.status, result.messages) == ("ok", [])


@pytest.mark.parametrize("code", ["'a;'", "5 # no semicolon;", "x = 1; x", "'''\n;'''"])
def test_a_semicolon_elsewhere_does_not_hide_the_result(kernel: KernelProcess, code: str) -> None:
    assert len(kernel.run(code).results) == 1


def test_script_mode_publishes_no_result(kernel: KernelProcess) -> None:
    assert kernel.run("5", echo=False).messages == []


def test_environment_is_set_before_the_code_runs(kernel: KernelProcess) -> None:
    assert kernel.run("import os; os.environ['GREETING']", env={"GREETING": "hi"}).text == "'hi'"


def test_error_has_name_value_and_only_the_users_frames(kernel: KernelProcess) -> None:
    result = kernel.run("def f():\n    return 1 / 0\n\nf()")
    assert (result.status, result.exit_code) == ("error", 1)
    assert result.error["name"] == "ZeroDivisionError"
    assert result.error["value"] == "division by zero"
    traceback = result.error["traceback"]
    assert traceback.startswith('Traceback (most recent call last):\n  File "<cell 1>", line 4, in <module>\n    f()\n')
    assert '  File "<cell 1>", line 2, in f\n    return 1 / 0\n' in traceback
    assert "belljar" not in traceback


def test_data_of_a_failed_cell_is_released(kernel: KernelProcess) -> None:
    kernel.run(
        "import weakref\nclass Big: pass\ndef f():\n    global ref\n    big = Big()\n    ref = weakref.ref(big)\n    1/0\nf()"
    )
    assert kernel.run("ref() is None").text == "True"


def test_code_before_an_error_has_taken_effect(kernel: KernelProcess) -> None:
    kernel.run("x = 1\n1/0")
    assert kernel.run("x").text == "1"


def test_syntax_error_is_plain_python_with_a_caret(kernel: KernelProcess) -> None:
    result = kernel.run("x = 1\ndef broken(:\n    pass")
    assert result.status == "error"
    assert result.error["name"] == "SyntaxError"
    lines = result.error["traceback"].splitlines()
    assert lines[0] == '  File "<cell 1>", line 2'
    assert lines[1] == "    def broken(:"
    assert lines[2].strip("^ ") == ""
    assert lines[3].startswith("SyntaxError: ")


@needs_ipython
@pytest.mark.parametrize("code", ["x = = 1", "print 'a'", "%time x = = 1 (", "a = (1\n% 2"])
def test_bad_python_is_a_syntax_error_also_where_magics_are_possible(kernel: KernelProcess, code: str) -> None:
    result = kernel.run(code)
    assert result.error["name"] == "SyntaxError"
    assert "IPython" not in result.error["traceback"]


def test_a_missing_package_says_how_to_get_it(kernel: KernelProcess) -> None:
    def said(code: str) -> Any:
        return kernel.run(code).error["traceback"].splitlines()[-1]

    assert "this session has no network; `belljar setup --with nonsense`" in said("import nonsense.deep")
    kernel.run("import os; os.environ['HTTPS_PROXY'] = 'http://127.0.0.1:3128'")
    assert said("import nonsense") == (
        "nonsense is not installed. If it is a package, `%pip install nonsense` installs it for this session; "
        "`belljar setup --with nonsense` on the server's machine installs it for all sessions."
    )
    assert "`%pip install opencv-python-headless`" in said("import cv2")
    # What pip does not have.
    for code in ("import xml.nothing", "import _nonsense", "raise ModuleNotFoundError('x', name='no name; rm -rf')"):
        assert said(code).startswith("ModuleNotFoundError: "), code
    assert said("raise ModuleNotFoundError('x')") == "ModuleNotFoundError: x"


def test_chained_exceptions_are_all_shown(kernel: KernelProcess) -> None:
    traceback = kernel.run(
        "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise ValueError('second') from e"
    ).error["traceback"]
    assert "ZeroDivisionError: division by zero\n\nThe above exception was the direct cause" in traceback
    assert traceback.endswith("ValueError: second\n")


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exception groups came with Python 3.11")
def test_exception_groups_show_their_members(kernel: KernelProcess) -> None:
    traceback = kernel.run("raise ExceptionGroup('both', [ValueError('a'), KeyError('b')])").error["traceback"]
    assert "ExceptionGroup: both (2 sub-exceptions)" in traceback
    assert "ValueError: a" in traceback
    assert "KeyError: 'b'" in traceback
    assert "belljar" not in traceback


def test_endless_recursion_is_an_error_and_not_the_end(kernel: KernelProcess) -> None:
    result = kernel.run("def f(): return f()\nf()")
    assert result.error["name"] == "RecursionError"
    assert "more times]" in result.error["traceback"]
    assert kernel.run("1").text == "1"


def test_a_huge_traceback_is_cut_in_the_middle(kernel: KernelProcess) -> None:
    error = kernel.run("raise ValueError('x' * 1_000_000)").error
    assert len(error["traceback"]) < (256 << 10) + 200
    assert "left out" in error["traceback"]
    assert error["traceback"].endswith("xxx\n")


def test_an_exception_that_cannot_be_printed_is_still_reported(kernel: KernelProcess) -> None:
    result = kernel.run(
        "class Bad(Exception):\n    def __str__(self): raise RuntimeError('no')\nraise Bad"
    )
    assert (result.status, result.error["name"]) == ("error", "Bad")
    assert kernel.run("1").text == "1"


@pytest.mark.parametrize(
    ("code", "exit_code", "stderr"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("exit()", 0, ""),
        ("quit(4)", 4, ""),
        ("raise SystemExit", 0, ""),
        ("raise SystemExit('bye')", 1, "bye\n"),
        ("raise SystemExit(-1)", 255, ""),
    ],
)
def test_exit_ends_the_exec_and_keeps_the_state(kernel: KernelProcess, code: str, exit_code: Any, stderr: Any) -> None:
    kernel.run("x = 'kept'")
    result = kernel.run(code + "\nprint('not reached')")
    assert (result.status, result.exit_code) == ("exit", exit_code)
    assert (result.stdout, result.stderr) == ("", stderr)
    assert kernel.run("x").text == "'kept'"


def test_source_of_cells_can_be_inspected(kernel: KernelProcess) -> None:
    kernel.run("def double(x):\n    # a comment\n    return 2 * x\n")
    assert kernel.run("import inspect; print(inspect.getsource(double))").stdout == (
        "def double(x):\n    # a comment\n    return 2 * x\n\n"
    )


def test_form_feeds_and_carriage_returns_do_not_shift_lines(kernel: KernelProcess) -> None:
    traceback = kernel.run("a = '''\x0c\u2028'''\r\nb = 1\r\n1/0").error["traceback"]
    assert '"<cell 1>", line 3' in traceback
    assert "    1/0\n" in traceback


def test_only_recent_cells_are_remembered(kernel: KernelProcess) -> None:
    for _ in range(1005):
        kernel.start("x = 1")
        kernel.receive()
    assert kernel.run("import linecache; [n for n in linecache.cache if n.startswith('<cell')].__len__()").text == "1000"


def test_future_imports_stay_in_force(kernel: KernelProcess) -> None:
    kernel.run("from __future__ import annotations")
    assert kernel.run("def f(x: undefined): pass\nf.__annotations__").text == "{'x': 'undefined'}"


def test_dataclasses_and_pickle_find_main(kernel: KernelProcess) -> None:
    code = (
        "import pickle, dataclasses\n@dataclasses.dataclass\nclass P:\n    x: int\n"
        "pickle.loads(pickle.dumps(P(3))), __name__, __import__('sys').modules['__main__'].P is P"
    )
    assert kernel.run(code).text == "(P(x=3), '__main__', True)"


def test_warnings_are_shown_by_every_cell_that_causes_them(kernel: KernelProcess) -> None:
    for _ in range(2):
        assert "careful" in kernel.run("import warnings; warnings.warn('careful')").stderr


def test_our_modules_are_not_importable_by_users(kernel: KernelProcess) -> None:
    assert kernel.run("import sys; sys.path[0]").text == "''"
    assert kernel.run("import wire").error["name"] == "ModuleNotFoundError"
    assert kernel.run("[p for p in sys.path if 'belljar_kernel' in p or p.endswith('kernels/python')]").text == "[]"


def test_pythonpath_is_for_user_code(start_kernel: Callable[..., KernelProcess], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("value = 7")
    (tmp_path / "json.py").write_text("raise RuntimeError('shadowed')")
    kernel = start_kernel(env={"PYTHONPATH": str(tmp_path)})
    assert kernel.run("import mine; mine.value").text == "7"


def test_source_that_is_not_utf8_is_an_error(kernel: KernelProcess) -> None:
    assert kernel.run(b"'\xff'").error["name"] == "UnicodeDecodeError"
    assert kernel.run("1").text == "1"


def test_null_bytes_are_an_error(kernel: KernelProcess) -> None:
    assert kernel.run("x = 1\0").status == "error"


def test_await_at_top_level_on_one_loop(kernel: KernelProcess) -> None:
    kernel.run("import asyncio\nqueue = asyncio.Queue()\nawait queue.put(5)\nloop = asyncio.get_running_loop()")
    assert kernel.run("await queue.get()").text == "5"
    assert kernel.run("await asyncio.sleep(0)\nasyncio.get_running_loop() is loop").text == "True"
    assert kernel.run("await asyncio.sleep(0, asyncio.get_running_loop() is loop)").text == "True"


def test_async_for_and_with_at_top_level(kernel: KernelProcess) -> None:
    code = "async def numbers():\n    yield 1\n    yield 2\nasync for n in numbers():\n    print(n)"
    assert kernel.run(code).stdout == "1\n2\n"


def test_asyncio_run_works_in_a_cell(kernel: KernelProcess) -> None:
    code = "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 3\nasyncio.run(f())"
    assert kernel.run(code).text == "3"


def test_error_in_an_awaited_cell(kernel: KernelProcess) -> None:
    result = kernel.run("import asyncio\nawait asyncio.sleep(0)\n1/0")
    assert result.error["name"] == "ZeroDivisionError"
    assert "belljar" not in result.error["traceback"]


def test_unknown_operations_are_ignored(kernel: KernelProcess) -> None:
    kernel.send({"op": "from the future"}, b"x")
    assert kernel.run("1").text == "1"


def test_a_kernel_that_cannot_start_says_why() -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(TIMEOUT)
    # Room for the control socket among the private descriptors, and for nothing else.
    command = f"ulimit -n 101; exec '{sys.executable}' -I '{MAIN}' kernel --fd {theirs.fileno()}"
    process = subprocess.Popen(["sh", "-c", command], pass_fds=[theirs.fileno()])
    theirs.close()
    answer = b"".join(iter(lambda: ours.recv(4096), b""))
    assert b'{"op":"fatal"}' in answer
    assert b"the kernel could not start: OSError" in answer
    assert process.wait(10) == 70


def test_shutdown_runs_atexit_handlers(kernel: KernelProcess) -> None:
    kernel.run("import atexit\nkept = 'still here'\natexit.register(lambda: print('bye', kept))")
    assert kernel.shutdown() == (0, "bye still here\n", "")


def test_end_of_file_ends_the_kernel_quietly(kernel: KernelProcess) -> None:
    kernel.control.close()
    assert kernel.process.wait(10) == 0
    assert kernel.take_output() == ("", "")


def test_an_idle_kernel_does_not_wake_up(kernel: KernelProcess) -> None:
    kernel.run("import threading, asyncio\nawait asyncio.sleep(0)")
    before = kernel.wait_until_idle()
    time.sleep(0.5)
    assert kernel.context_switches() == before
