"""SIGINT reaches user code and nothing else."""

from __future__ import annotations

import os
import signal
import time

import pytest
from conftest import KernelProcess

BUSY = "print('started', flush=True)\n"


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time\ntime.sleep(60)",
        "import subprocess\nsubprocess.run(['sleep', '60'])",
        "import asyncio\nawait asyncio.sleep(60)",
        "async def spin():\n    while True: pass\nawait spin()",
        "import threading\nthreading.Event().wait(60)",
        "class Slow:\n    def __repr__(self):\n        while True: pass\nSlow()",
        "class Slow(Exception):\n    def __str__(self):\n        while True: pass\nraise Slow",
    ],
)
def test_user_code_is_interrupted(kernel: KernelProcess, code: str) -> None:
    kernel.run("x = 'kept'")
    kernel.start(BUSY + code)
    kernel.wait_for_stdout("started")
    time.sleep(0.05)
    kernel.interrupt()
    result = kernel.finish()
    if "raise Slow" in code:
        # It had failed already; only the rendering of its error was cut short.
        assert (result.status, result.error["name"]) == ("error", "Slow")
    else:
        assert (result.status, result.exit_code) == ("interrupted", 130)
        assert result.error["name"] == "KeyboardInterrupt"
        assert "belljar" not in result.error["traceback"]
    assert kernel.run("x").text == "'kept'"


def test_an_interrupt_can_be_caught_and_sent_again(kernel: KernelProcess) -> None:
    kernel.start(BUSY + "import time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    print('caught')\ntime.sleep(60)")
    kernel.wait_for_stdout("started")
    kernel.interrupt()
    kernel.wait_for_stdout("caught")
    kernel.interrupt()
    assert kernel.finish().status == "interrupted"


def test_interrupts_while_idle_are_ignored(kernel: KernelProcess) -> None:
    for _ in range(20):
        kernel.interrupt()
    assert kernel.run("1").text == "1"
    kernel.interrupt()
    assert kernel.run("import time; time.sleep(0.05); 2").text == "2"


def test_a_storm_of_interrupts_never_breaks_the_protocol(kernel: KernelProcess) -> None:
    """SIGINT at every possible moment: each exec still ends with exactly one well-formed answer."""
    storm = os.fork()
    if storm == 0:
        while True:
            os.killpg(kernel.process.pid, signal.SIGINT)
            time.sleep(0.0003)
    try:
        statuses = set()
        for number in range(400):
            result = kernel.run(f"for i in range(50): display({number})\n{number}")
            assert result.done["execution_count"] == number + 1
            assert all(text == {"text/plain": str(number)} for text in result.displays)
            statuses.add(result.status)
        assert "interrupted" in statuses
    finally:
        os.kill(storm, signal.SIGKILL)
        os.waitpid(storm, 0)
    assert kernel.run("'alive'").text == "'alive'"


def test_tasks_left_over_are_cancelled_by_an_interrupt(kernel: KernelProcess) -> None:
    kernel.run("import asyncio\nlog = []")
    kernel.start(
        BUSY + "async def other():\n    print('begun', flush=True)\n    try:\n        await asyncio.sleep(60)\n    finally:\n        log.append('cleaned up')\n"
        "task = asyncio.create_task(other())\nawait asyncio.sleep(60)"
    )
    kernel.wait_for_stdout("begun")
    kernel.interrupt()
    assert kernel.finish().status == "interrupted"
    assert kernel.run("log, task.cancelled()").text == "(['cleaned up'], True)"
    assert kernel.run("await asyncio.sleep(0, 'again')").text == "'again'"


def test_the_users_handler_lasts_for_one_cell(kernel: KernelProcess) -> None:
    kernel.start(
        "import signal, time\ncalls = []\nsignal.signal(signal.SIGINT, lambda *_: calls.append(1))\n"
        "print('ready', flush=True)\nwhile not calls: time.sleep(0.01)"
    )
    kernel.wait_for_stdout("ready")
    kernel.interrupt()
    assert kernel.finish().status == "ok"
    kernel.interrupt()
    kernel.start(BUSY + "time.sleep(60)")
    kernel.wait_for_stdout("started")
    kernel.interrupt()
    assert kernel.finish().status == "interrupted"


def test_an_alarm_is_for_the_cell_that_set_it(kernel: KernelProcess) -> None:
    kernel.run(
        "import signal\ndef late(*_): raise TimeoutError('too late')\nsignal.signal(signal.SIGALRM, late)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05);"
    )
    assert kernel.run("import time; time.sleep(0.2); 'fine'").text == "'fine'"
    result = kernel.run("signal.setitimer(signal.ITIMER_REAL, 0.05); time.sleep(60)")
    assert (result.status, result.error["name"]) == ("error", "TimeoutError")


def test_a_handler_that_raises_while_idle_does_not_end_the_kernel(kernel: KernelProcess) -> None:
    kernel.run("import signal\ndef late(*_): raise TimeoutError('nobody listens')\nsignal.signal(signal.SIGUSR1, late);")
    kernel.wait_until_idle()
    os.kill(kernel.process.pid, signal.SIGUSR1)
    kernel.wait_for_stderr("TimeoutError")
    result = kernel.run("'alive'")
    assert result.text == "'alive'"
    assert "TimeoutError: nobody listens" in result.stderr
