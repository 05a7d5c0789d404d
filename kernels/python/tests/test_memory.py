"""What is not used any more goes back to the system, while nobody waits for it."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
from conftest import TIMEOUT, KernelProcess, needs_pandas

PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20


# `seen` has all full collections, each of which is printed too.
COUNT_COLLECTIONS = """
import gc
seen = []
def count(phase, info):
    if info["generation"] == 2 and phase == "stop":
        seen.append(info)
        print("collected", flush=True)
gc.callbacks.append(count)
"""


def private_mib(kernel: KernelProcess) -> Any:
    """Memory of the kernel that is not a file's."""
    with open(f"/proc/{kernel.process.pid}/statm") as file:
        fields = file.read().split()
    return (int(fields[1]) - int(fields[2])) * PAGE / MIB


def falls_below(kernel: KernelProcess, mib: Any) -> None:
    deadline = time.monotonic() + TIMEOUT
    while private_mib(kernel) > mib:
        assert time.monotonic() < deadline, f"still {private_mib(kernel):.0f} MiB"
        time.sleep(0.02)


# Each makes 300 MB. Of what comes from malloc, something lives on in between: then malloc keeps the rest.
HOARDS = {
    "lists": "x = [[i] for i in range(2_500_000)]",
    "text": "x = [str(i) * 400 for i in range(120_000)]\nkept = x[::5000]",
    "arrays": "import numpy as np\nx = [np.ones(1000) for _ in range(37_500)]\nkept = x[::500]",
    "frames": "import numpy as np, pandas as pd\nx = [pd.DataFrame(np.ones((1000, 10))) for _ in range(3_750)]\nkept = [f[0].copy() for f in x[::50]]",
    "cycles": "import gc; gc.disable()\nx = []\nfor n in range(600_000):\n    x.append([n])\n    x[-1] += [x, str(n) * 60]\ngc.enable()",
}


@pytest.mark.parametrize("name", ["lists", "text", "cycles", *(pytest.param(n, marks=needs_pandas) for n in ("arrays", "frames"))])
def test_what_is_deleted_goes_back(kernel: KernelProcess, name: str) -> None:
    if name in ("arrays", "frames"):
        kernel.run("import numpy, pandas; pandas.DataFrame(numpy.ones((2, 2))).sum()")
    kernel.run("0")
    before = private_mib(kernel)
    assert kernel.run(HOARDS[name]).status == "ok"
    assert private_mib(kernel) > before + 200
    kernel.run("del x")
    falls_below(kernel, before + 60)


def test_a_small_kernel_is_left_alone(kernel: KernelProcess) -> None:
    kernel.run("import gc; seen = []; gc.callbacks.append(lambda _, info: info['generation'] == 2 and seen.append(info)); x = 'x' * 20_000_000")
    time.sleep(1)
    assert kernel.run("seen").text == "[]"


def test_the_next_exec_does_not_wait(kernel: KernelProcess) -> None:
    """Execs that follow each other are not disturbed, however much memory there is."""
    kernel.run(f"x = [[i] for i in range(1_000_000)]\n{COUNT_COLLECTIONS}")
    for _ in range(40):
        time.sleep(0.01)
        start = time.monotonic()
        kernel.run("1")
        assert time.monotonic() - start < 0.5
    assert kernel.run("seen").text == "[]", "a collection would have been met"
    # After a longer idle time there is a collection.
    kernel.wait_for_stdout("collected")


def test_code_that_a_collection_runs_can_be_interrupted(kernel: KernelProcess) -> None:
    code = (
        "import gc, time\nclass Slow:\n    def __del__(self):\n        print('begun', flush=True)\n        time.sleep(1000)\n"
        "x = Slow()\nx.self = x\ngc.collect()\nballast = 'x' * 100_000_000\ndel x"
    )
    kernel.run(code)
    kernel.wait_for_stdout("begun")
    kernel.start("6 * 7")
    kernel.interrupt()
    result = kernel.finish()
    assert (result.text, result.status) == ("42", "ok")


def test_who_switches_the_collector_off_is_obeyed(kernel: KernelProcess) -> None:
    kernel.run("import gc; gc.disable(); x = 'x' * 100_000_000; seen = []; gc.callbacks.append(lambda _, info: info['generation'] == 2 and seen.append(info))")
    time.sleep(2.5)
    assert kernel.run("seen").text == "[]"


def test_input_that_was_not_asked_for_does_not_keep_it_from_working(kernel: KernelProcess) -> None:
    kernel.start("import time; time.sleep(0.3); x = [[i] for i in range(2_000_000)]; del x; y = 'y' * 60_000_000; input()", stdin=True)
    kernel.send({"op": "input", "exec_id": "x1"}, b"one\n")
    kernel.send({"op": "input", "exec_id": "x1"}, b"two\n")
    kernel.finish()
    kernel.run(COUNT_COLLECTIONS)
    kernel.wait_for_stdout("collected")
