"""The zygote of a container: requests, forks, and what its kernels do not share."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import needs_ipython, needs_matplotlib, needs_pandas
from zygote_client import ZygoteProcess


@pytest.fixture(scope="module")
def zygote() -> Iterator[Any]:
    zygote = ZygoteProcess(preload=["json", "no_such_module"])
    yield zygote
    assert zygote.close() == 0


def status_of(client: Any) -> Any:
    text = client.run("print(open('/proc/self/status').read())").stdout
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def test_ready_says_what_was_loaded(zygote: ZygoteProcess) -> None:
    ready = zygote.ready
    assert ready["modules"] == ["json"]
    assert ready["failed"].keys() == {"no_such_module"}
    assert "ModuleNotFoundError" in ready["failed"]["no_such_module"]
    assert ready["threads"] == []
    assert ready["rss_kib"] > 5000


def test_only_the_control_socket_stays_open(zygote: ZygoteProcess) -> None:
    fds = sorted(map(int, os.listdir(f"/proc/{zygote.process.pid}/fd")))
    assert fds[:3] == [0, 1, 2]
    assert len(fds) == 4


@pytest.mark.parametrize(
    "packet",
    [
        b"not json",
        b"[]",
        {"op": "unheard of"},
        {"op": "fork"},
        {"op": "fork", "id": 1, "fds": ["control"], "uid": 0, "gid": 0, "cwd": "/", "env": {}},
        {"op": "configure", "preload": []},
    ],
)
def test_a_malformed_packet_is_answered_and_survived(zygote: ZygoteProcess, packet: Any) -> None:
    answer = zygote.request(packet)
    assert answer["op"] == "error"
    assert answer["error"]


def test_descriptors_of_a_bad_request_are_closed(zygote: ZygoteProcess) -> None:
    read, write = os.pipe()
    zygote.request({"op": "fork", "fds": ["control"]}, [write])
    os.close(write)
    assert os.read(read, 1) == b""
    os.close(read)


def test_forking_before_configuration_is_refused() -> None:
    zygote = ZygoteProcess(configure=False)
    answer, _ = zygote.try_fork()
    assert answer["op"] == "error"
    assert "configured" in answer["error"]
    assert zygote.close() == 0


def test_interrupts_do_not_end_the_zygote(zygote: ZygoteProcess) -> None:
    os.kill(zygote.process.pid, signal.SIGINT)
    assert zygote.request({"op": "nonsense"})["op"] == "error"


def test_it_has_a_session_signals_and_environment_of_its_own(zygote: ZygoteProcess) -> None:
    kernel = zygote.fork(cwd="/tmp", env={"HOME": "/tmp", "TZ": "Asia/Tokyo", "PYTHONPATH": "/extra"})
    status = status_of(kernel)
    assert int(status["SigBlk"], 16) == 0
    assert kernel.run("import os; os.getsid(0) == os.getpid()").text == "True"
    assert kernel.run("os.getcwd(), dict(os.environ)").text == (
        "('/tmp', {'HOME': '/tmp', 'TZ': 'Asia/Tokyo', 'PYTHONPATH': '/extra'})"
    )
    assert kernel.run("import sys; sys.path[:2]").text == "['', '/extra']"
    assert kernel.run("import subprocess; subprocess.run(['/usr/bin/env'], capture_output=True).stdout").text == (
        "b'HOME=/tmp\\nTZ=Asia/Tokyo\\nPYTHONPATH=/extra\\n'"
    )


def test_it_holds_no_descriptor_but_its_own(zygote: ZygoteProcess) -> None:
    kernel = zygote.fork()
    # A few are open beside stdio: the control socket and the duplicates of stdio, all at high numbers.
    fds = eval(kernel.run("import os; sorted(map(int, os.listdir('/proc/self/fd')))").text)
    assert [fd for fd in fds if 3 < fd < 960] == []
    assert len([fd for fd in fds if fd >= 960]) == 4


def test_randomness_is_not_shared(zygote: ZygoteProcess) -> None:
    code = "import random, uuid, multiprocessing.process as p\nrandom.random(), uuid.uuid4(), bytes(p.current_process().authkey)"
    first, second = (zygote.fork().run(code).text for _ in range(2))
    assert first.startswith("(0.")
    assert all(a != b for a, b in zip(first.split(","), second.split(",")))


def test_it_can_be_interrupted_and_runs_children(zygote: ZygoteProcess) -> None:
    kernel = zygote.fork()
    kernel.start("print('started', flush=True)\nwhile True: pass")
    kernel.wait_for_stdout("started")
    os.kill(kernel.pid, signal.SIGINT)
    assert kernel.finish().status == "interrupted"
    assert kernel.run("import subprocess; subprocess.run('echo hi', shell=True).returncode").stdout == "hi\n"
    assert kernel.run("import multiprocessing as m, math\nwith m.get_context('fork').Pool(2) as p: r = p.map(abs, [-1])\nr").text == "[1]"


def test_children_of_the_zygote_are_reaped(zygote: ZygoteProcess) -> None:
    for _ in range(3):
        zygote.fork()
    deadline = time.monotonic() + 10
    while children_of(zygote.process.pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert children_of(zygote.process.pid) == []


def test_kernels_outlive_the_zygote() -> None:
    zygote = ZygoteProcess()
    kernel = zygote.fork()
    assert zygote.close() == 0
    assert kernel.run("6 * 7").text == "42"


def test_a_place_that_does_not_exist_is_fatal(zygote: ZygoteProcess) -> None:
    _, kernel = zygote.try_fork(cwd="/no/such/directory")
    assert kernel.receive()[0] == {"op": "fatal"}


@needs_ipython
def test_the_shell_exists_before_the_first_cell(zygote: ZygoteProcess) -> None:
    kernel = zygote.fork()
    assert kernel.run("import sys; 'IPython' in sys.modules").text == "True"
    started = time.perf_counter()
    assert kernel.run("!echo hi").stdout == "hi\n"
    assert time.perf_counter() - started < 0.3


@needs_matplotlib
@needs_pandas
def test_preloaded_libraries_work_in_a_kernel() -> None:
    zygote = ZygoteProcess(preload=["numpy", "pandas", "matplotlib.pyplot"])
    assert zygote.ready["threads"] == []
    assert len(os.listdir(f"/proc/{zygote.process.pid}/fd")) == 4
    kernels = [zygote.fork() for _ in range(2)]
    randoms = {kernel.run("import numpy; numpy.random.random()").text for kernel in kernels}
    assert len(randoms) == 2
    result = kernels[0].run("import pandas, matplotlib.pyplot as plt\nplt.title('αβγ $x^2$')\npandas.DataFrame({'a': [1]})")
    assert "<table" in result.results[0]["text/html"]
    assert result.displays[0]["image/png"].startswith("iVBOR")
    assert result.stderr == ""
    zygote.close()


def children_of(pid: Any) -> Any:
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()
