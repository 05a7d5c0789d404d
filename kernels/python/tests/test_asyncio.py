"""asyncio as in Jupyter: tasks begun in any cell, which go on between cells."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import TIMEOUT, KernelProcess

TICKER = """\
import asyncio
ticks = []
async def tick(pause=0.005):
    while True:
        ticks.append(1)
        await asyncio.sleep(pause)
"""


class Gate:
    """A task waits here (`await gate()`) until the test opens: what it does then is certainly done between two cells."""

    def __init__(self, path: Any) -> None:
        self.path = path
        self.code = (
            "import asyncio, os\nasync def gate():\n"
            f"    while not os.path.exists({str(path)!r}): await asyncio.sleep(0.002)\n"
        )

    def open(self) -> None:
        self.path.touch()


@pytest.fixture
def gate(tmp_path: Path) -> Any:
    return Gate(tmp_path / "gate")


def test_a_task_begun_in_a_cell_without_await_goes_on_between_cells(kernel: KernelProcess) -> None:
    result = kernel.run(TICKER + "task = asyncio.create_task(tick())\nlen(ticks)")
    assert (result.status, result.text) == ("ok", "0")
    deadline = time.monotonic() + TIMEOUT
    while int(kernel.run("len(ticks)").text) <= 10:
        assert time.monotonic() < deadline, "the task does not go on"
        time.sleep(0.05)
    assert kernel.run("task.cancel(); await asyncio.wait([task]); task.cancelled()").text == "True"


def test_the_loop_is_found_in_every_cell_and_is_the_same(kernel: KernelProcess) -> None:
    kernel.run("import asyncio\nloop = asyncio.get_running_loop()")
    assert kernel.run("asyncio.get_running_loop() is loop, asyncio.get_event_loop() is loop").text == "(True, True)"
    assert kernel.run("async def f(): return asyncio.get_running_loop() is loop\nawait f()").text == "True"
    assert kernel.run("future = asyncio.ensure_future(f())").status == "ok"
    assert kernel.run("await future").text == "True"


def test_a_module_that_uses_the_loop_finds_it(kernel: KernelProcess, tmp_path: Path) -> None:
    (tmp_path / "starter.py").write_text("import asyncio\nasync def f(): return 7\ndef go(): return asyncio.create_task(f())\n")
    kernel.run(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); __import__('asy' + 'ncio')")
    assert kernel.run("import starter; t = starter.go()").status == "ok"
    assert kernel.run("await t").text == "7"


@pytest.mark.parametrize(
    "code",
    [
        "asyncio.run(f())",
        "asyncio.Runner().run(f())",
        "asyncio.get_event_loop().run_until_complete(f())",
        "asyncio.new_event_loop().run_until_complete(f())",
    ],
)
def test_running_a_loop_in_a_cell_works_while_tasks_are_pending(kernel: KernelProcess, code: str) -> None:
    kernel.run(TICKER + "task = asyncio.create_task(tick())\nasync def f():\n    await asyncio.sleep(0)\n    return 3")
    assert kernel.run(code).text == "3"
    assert kernel.run("asyncio.create_task(f()) and None").status == "ok"
    assert kernel.run("task.done()").text == "False"


def test_a_loop_cannot_be_run_inside_a_running_one(kernel: KernelProcess) -> None:
    kernel.run("import asyncio\nasync def f(): pass")
    result = kernel.run("await asyncio.sleep(0)\nc = f()\ntry:\n    asyncio.run(c)\nfinally:\n    c.close()")
    assert result.error["value"] == "asyncio.run() cannot be called from a running event loop"


def test_threads_do_not_find_the_loop(kernel: KernelProcess) -> None:
    code = (
        "import asyncio, threading\nfound = []\ndef look():\n    try: found.append(asyncio.get_running_loop())\n"
        "    except RuntimeError: found.append(None)\nt = threading.Thread(target=look); t.start(); t.join()\nfound"
    )
    assert kernel.run(code).text == "[None]"


def test_what_a_task_prints_between_cells_comes_with_the_next(kernel: KernelProcess, gate: Any) -> None:
    code = gate.code + "async def late():\n    await gate()\n    print('late', end='')\n    display('shown')\n    done.append(1)\n"
    assert kernel.run(code + "done = []\nt = asyncio.create_task(late());").stdout == ""
    gate.open()
    kernel.wait_for_stdout("late")
    result = kernel.run("done, 1")
    assert (result.stdout, result.text) == ("late", "([1], 1)")
    assert [data["text/plain"] for data in result.displays] == ["'shown'"]


def test_displays_between_cells_are_bounded_and_the_rest_is_counted(kernel: KernelProcess, gate: Any) -> None:
    code = gate.code + "async def late():\n    await gate()\n    for n in range(150): display(n)\n    print('all')\n"
    kernel.run(code + "t = asyncio.create_task(late());")
    gate.open()
    kernel.wait_for_stdout("all")
    result = kernel.run("1")
    assert len(result.displays) == 100
    assert "50 displays between two executions were dropped" in result.stderr


def test_a_failed_task_is_reported_once_by_the_next_cell(kernel: KernelProcess, gate: Any) -> None:
    kernel.run(gate.code + "async def broken():\n    await gate()\n    print('failing', flush=True)\n    raise ValueError('lost?')\n")
    result = kernel.run("t = asyncio.create_task(broken())\nt.set_name('mine')\nprint('begun')")
    assert (result.status, result.stderr) == ("ok", "")
    gate.open()
    kernel.wait_for_stdout("failing")
    result = kernel.run("'the next'")
    assert (result.status, result.text) == ("ok", "'the next'")
    assert "asyncio task `mine` (broken) failed:" in result.stderr
    assert result.stderr.endswith("ValueError: lost?\n")
    assert "belljar_kernel" not in result.stderr
    assert kernel.run("del t\nimport gc; gc.collect();").stderr == ""


def test_a_failed_task_that_is_awaited_is_not_reported(kernel: KernelProcess) -> None:
    kernel.run("import asyncio\nasync def broken(): raise ValueError('mine')\nt = asyncio.create_task(broken())")
    kernel.wait_until_idle()
    result = kernel.run("try:\n    await t\nexcept ValueError as error:\n    print(error)")
    assert (result.stdout, result.stderr) == ("mine\n", "")
    assert kernel.run("1").stderr == ""
    # Also if it fails while a cell runs that does not ask for it.
    kernel.run("t = asyncio.create_task(broken())\nawait asyncio.sleep(0.02)")
    assert kernel.run("await asyncio.gather(t, return_exceptions=True);").stderr == ""
    assert kernel.run("1").stderr == ""


def test_a_task_that_leaves_does_not_end_the_kernel(kernel: KernelProcess, gate: Any) -> None:
    code = "import sys\nx = 5\nasync def leave():\n    await gate()\n    print('leaving', flush=True)\n    sys.exit(3)\n"
    kernel.run(gate.code + code + "t = asyncio.create_task(leave())")
    gate.open()
    kernel.wait_for_stdout("leaving")
    result = kernel.run("x")
    assert result.text == "5"
    assert result.stderr.count("SystemExit: 3") == 1
    assert kernel.run("x").stderr == ""


def test_an_interrupt_ends_what_the_cell_began_and_older_tasks_go_on(kernel: KernelProcess) -> None:
    kernel.run(TICKER + "old = asyncio.create_task(tick())")
    kernel.start("new = asyncio.create_task(tick())\nprint('started', flush=True)\nawait asyncio.sleep(60)")
    kernel.wait_for_stdout("started")
    kernel.interrupt()
    assert kernel.finish().status == "interrupted"
    assert kernel.run("old.done(), new.cancelled()").text == "(False, True)"


def test_an_interrupt_between_cells_harms_no_task(kernel: KernelProcess) -> None:
    kernel.run(TICKER + "task = asyncio.create_task(tick(0))")
    for _ in range(20):
        kernel.interrupt()
        time.sleep(0.005)
    result = kernel.run("task.done()")
    assert (result.text, result.stderr) == ("False", "")


def test_a_task_that_does_not_let_go_is_interrupted_for_the_next_cell(kernel: KernelProcess, gate: Any) -> None:
    code = "x = 1\nasync def hog():\n    await gate()\n    print('hogging', flush=True)\n    while True: pass\n"
    kernel.run(gate.code + code + "t = asyncio.create_task(hog())")
    gate.open()
    kernel.wait_for_stdout("hogging")
    kernel.start("x")
    # As the guest does when the time of the new cell is up.
    kernel.interrupt()
    result = kernel.finish()
    assert "KeyboardInterrupt" in result.stderr
    assert kernel.run("x, t.done()").text == "(1, True)"


def test_a_pending_task_costs_nothing_while_it_waits(kernel: KernelProcess) -> None:
    kernel.run("import asyncio\nt = asyncio.create_task(asyncio.sleep(1000))")
    before = kernel.wait_until_idle()
    time.sleep(0.5)
    assert kernel.context_switches() == before


def test_the_guest_is_answered_while_tasks_are_pending(kernel: KernelProcess) -> None:
    kernel.run(TICKER + "task = asyncio.create_task(tick(0))")
    for token in range(5):
        kernel.send({"op": "ping", "token": token})
        assert kernel.receive()[0] == {"op": "pong", "token": token}
    kernel.send({"op": "state"})
    assert kernel.receive()[0] == {"op": "state"}
    assert kernel.run("1 + 1").text == "2"


def test_values_stay_in_memory_while_tasks_are_pending(kernel: KernelProcess) -> None:
    kernel.run("import sys, types\nsys.modules.setdefault('numpy', types.ModuleType('numpy'))\n" + TICKER + "t = asyncio.create_task(tick())")
    kernel.send({"op": "spill", "frame_bytes": 1, "array_bytes": 1})
    head, body = kernel.receive()
    assert head == {"op": "spilled"}
    assert b"asyncio tasks are pending" in body


def test_connections_are_served_between_cells(kernel: KernelProcess, tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    code = (
        "import asyncio\nasync def serve(reader, writer):\n    writer.write((await reader.readline()).upper())\n    await writer.drain(); writer.close()\n"
        f"server = await asyncio.start_unix_server(serve, {path!r})"
    )
    assert kernel.run(code).status == "ok"
    import socket

    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(TIMEOUT)
        client.connect(path)
        client.sendall(b"hello\n")
        assert client.recv(100) == b"HELLO\n"


def test_work_in_an_executor_ends_between_cells(kernel: KernelProcess, gate: Any) -> None:
    code = "f = asyncio.get_running_loop().run_in_executor(None, lambda: asyncio.run(gate()) or 5)\nf.add_done_callback(lambda f: print('called', f.result(), flush=True))"
    kernel.run(gate.code + code)
    gate.open()
    kernel.wait_for_stdout("called 5")
    assert kernel.run("f.done()").text == "True"


def test_input_cannot_be_asked_for_between_cells(kernel: KernelProcess, gate: Any) -> None:
    kernel.start(gate.code + "async def ask():\n    await gate()\n    try: input('? ')\n    except EOFError: print('nobody')\nt = asyncio.create_task(ask())", stdin=True)
    assert kernel.finish().status == "ok"
    gate.open()
    kernel.wait_for_stdout("nobody")


def test_a_closed_loop_is_replaced(kernel: KernelProcess) -> None:
    kernel.run("import asyncio\nasyncio.get_event_loop().close()")
    assert kernel.run("t = asyncio.create_task(asyncio.sleep(0, 4))").status == "ok"
    assert kernel.run("await t").text == "4"


def test_a_forked_child_has_no_part_in_the_tasks(kernel: KernelProcess) -> None:
    kernel.run(TICKER + "task = asyncio.create_task(tick())")
    code = "import os\npid = os.fork()\nif pid == 0:\n    try: asyncio.get_running_loop()\n    except RuntimeError: os._exit(7)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    assert kernel.run(code).text == "7"
    assert kernel.run("task.done()").text == "False"


def test_shutdown_cancels_tasks_and_is_quiet(kernel: KernelProcess) -> None:
    code = "import asyncio\nasync def stay():\n    print('begun', flush=True)\n    try: await asyncio.sleep(1000)\n    finally: print('cleaned up')\nt = asyncio.create_task(stay())"
    # The task begins right before or right after the end of its cell is reported.
    if not kernel.run(code).stdout:
        kernel.wait_for_stdout("begun")
        kernel.take_output()
    assert kernel.shutdown() == (0, "cleaned up\n", "")


def test_a_handler_of_a_signal_that_raises_between_cells_harms_no_task(kernel: KernelProcess) -> None:
    kernel.run(TICKER + "import signal\ndef late(*_): raise TimeoutError('nobody listens')\nsignal.signal(signal.SIGUSR1, late)\ntask = asyncio.create_task(tick(1000));")
    kernel.wait_until_idle()
    os.kill(kernel.process.pid, signal.SIGUSR1)
    kernel.wait_for_stderr("TimeoutError")
    result = kernel.run("task.done()")
    assert result.text == "False"
    assert "TimeoutError: nobody listens" in result.stderr


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("    x = 1\n    x + 1", "2"),
        ("\n\t# a note\n\tx = 1\n\tif x:\n\t\ty = 5\n\ty", "5"),
        ("# a note\n  for n in range(3):\n      total = n\n  total", "2"),
        ("  x = '''a\n  b'''\n  x", "'a\\nb'"),
        ("    x = 3\nx", "3"),
        ("  async def f(): return 6\n  await f()", "6"),
    ],
)
def test_an_indented_cell_is_dedented(kernel: KernelProcess, code: str, text: str) -> None:
    result = kernel.run(code)
    assert (result.text, result.error) == (text, None)


def test_mistakes_in_an_indented_cell_are_told_by_their_line(kernel: KernelProcess) -> None:
    error = kernel.run("    x = 1\n    1 / 0").error
    assert 'line 2, in <module>\n    1 / 0\n    ~~^~~\n' in error["traceback"]
    assert kernel.run("    x = 1\n    x = = 2").error["value"] == "invalid syntax (<cell 2>, line 2)"
    assert kernel.run("    x = 1\n  y = 2").error["name"] == "IndentationError"
    assert kernel.run("if True:\nx = 1").error["name"] == "IndentationError"
    assert "line 2" in kernel.run("x = 1\n    y = 2").error["value"]


def test_a_script_is_not_dedented(kernel: KernelProcess, tmp_path: Path) -> None:
    result = kernel.run("    x = 1", echo=False, script={"path": str(tmp_path / "a.py"), "argv": ["a.py"]})
    assert result.error["name"] == "IndentationError"


def test_tasks_look_as_they_do_without_a_kernel(kernel: KernelProcess) -> None:
    result = kernel.run("import asyncio\nasync def f(): pass\nt = asyncio.create_task(f())\nt")
    assert result.text.startswith("<Task pending name='Task-1' coro=<f() running at <cell 1>:2>>")


def test_a_failed_task_that_nobody_has_any_more_is_reported_too(kernel: KernelProcess, gate: Any) -> None:
    kernel.run(gate.code + "async def broken():\n    await gate()\n    print('failing', flush=True)\n    1 / 0\nasyncio.create_task(broken());")
    gate.open()
    kernel.wait_for_stdout("failing")
    result = kernel.run("'next'")
    assert result.text == "'next'"
    assert result.stderr.startswith("asyncio task `Task-1` (broken) failed:\nTraceback")
    assert result.stderr.count("ZeroDivisionError") == 1
    assert kernel.run("1").stderr == ""


def test_a_kernel_that_does_not_need_the_loop_does_not_have_it(start_kernel: Callable[..., KernelProcess]) -> None:
    # As in kernels that begin with asyncio loaded.
    kernel = start_kernel()
    kernel.run("import asyncio")
    other = start_kernel()
    other.run("__import__('asy' + 'ncio')")
    count = "import os; len(os.listdir('/proc/self/fd'))"
    assert int(kernel.run(count).text) - int(other.run(count).text) == 3
    assert other.run("getattr(__import__('asy' + 'ncio'), 'get_running_loop')().is_running()").text == "False"
    assert int(kernel.run(count).text) == int(other.run(count).text)
