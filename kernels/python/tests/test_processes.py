"""Children of user code: forked, spawned, pooled."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import KernelProcess


def test_a_forked_child_ends_with_the_cell_and_never_speaks_the_protocol(kernel: KernelProcess) -> None:
    result = kernel.run(
        "import os\npid = os.fork()\nif pid == 0:\n    display('from the child')\n    x = 1/0\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert (result.status, result.messages) == ("ok", [])
    assert result.stdout == "'from the child'\n1\n"
    assert "ZeroDivisionError" in result.stderr
    assert "belljar" not in result.stderr


@pytest.mark.parametrize(("ending", "code"), [("pass", 0), ("raise SystemExit(7)", 7), ("import sys; sys.exit()", 0), ("5", 0)])
def test_a_forked_child_has_the_exit_code_of_a_script(kernel: KernelProcess, ending: Any, code: str) -> None:
    result = kernel.run(
        f"import os\npid = os.fork()\nif pid == 0:\n    {ending}\n"
        "else:\n    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert result.stdout == f"{code}\n"
    assert kernel.run("1").text == "1"


def test_children_do_not_inherit_private_descriptors(kernel: KernelProcess) -> None:
    result = kernel.run("import subprocess\nprint(subprocess.run('ls /proc/self/fd', shell=True, capture_output=True).stdout)")
    assert all(int(fd) < 10 for fd in eval(result.stdout).split())


def test_a_detached_child_does_not_keep_the_pipes_open(kernel: KernelProcess) -> None:
    code = (
        "import os\nif os.fork() == 0:\n    os.setsid()\n    for fd in (0, 1, 2): os.close(fd)\n"
        "    import time; time.sleep(60)\n    os._exit(0)"
    )
    assert kernel.run(code).status == "ok"
    kernel.send({"op": "shutdown"})
    assert kernel.process.wait(10) == 0
    import select

    poll = select.poll()
    poll.register(kernel.pipes["stdout"], select.POLLIN)
    assert poll.poll(5000)[0][1] & select.POLLHUP


def test_a_child_of_a_forked_child_is_silent_too(kernel: KernelProcess) -> None:
    reply = kernel.run(
        "import os\nif os.fork() == 0:\n    if os.fork() == 0: os._exit(0)\n    os.wait()\n    os._exit(0)\nos.wait()[1]"
    )
    assert reply.text == "0"
    assert reply.stderr == ""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_multiprocessing_pools_work(kernel: KernelProcess, method: Any) -> None:
    code = f"import multiprocessing, math\nwith multiprocessing.get_context('{method}').Pool(2) as pool:\n    r = pool.map(math.sqrt, [1, 4, 9])\nr"
    assert kernel.run(code).text == "[1.0, 2.0, 3.0]"


def test_functions_of_cells_run_in_process_pools(kernel: KernelProcess) -> None:
    kernel.run("def double(x): return 2 * x")
    code = (
        "import concurrent.futures as cf, multiprocessing\n"
        "with cf.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context('fork')) as pool:\n"
        "    r = list(pool.map(double, range(3)))\nr"
    )
    assert kernel.run(code).text == "[0, 2, 4]"


def test_threads_may_print_and_display(kernel: KernelProcess) -> None:
    code = (
        "import threading\ndef work(n):\n    print(n)\n    display(n)\n"
        "ts = [threading.Thread(target=work, args=(n,)) for n in range(20)]\n[t.start() for t in ts]\n[t.join() for t in ts];"
    )
    result = kernel.run(code)
    assert sorted(int(d["text/plain"]) for d in result.displays) == list(range(20))
    assert sorted(map(int, result.stdout.split())) == list(range(20))


def test_a_background_thread_survives_the_cell(kernel: KernelProcess) -> None:
    kernel.run("import threading\ngo = threading.Event()\ndef late():\n    go.wait()\n    print('late')\nt = threading.Thread(target=late)\nt.start()")
    assert kernel.run("go.set(); t.join()").stdout == "late\n"
