"""The zygote: requests, forks into real namespaces, and the seal on what comes out.

Most of it needs root, as the zygote does in production.
"""

import ctypes
import os
import signal
import struct
import time

import pytest
from conftest import needs_ipython, needs_matplotlib, needs_pandas
from zygote_client import Sandbox, ZygoteProcess

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="entering namespaces takes root")

# A seccomp program that refuses sched_yield with EPERM and allows everything else, for any architecture that
# the tests run on: load the number, compare, return.
SCHED_YIELD = {"x86_64": 24, "aarch64": 124}[os.uname().machine]
SECCOMP = b"".join(
    struct.pack("<HBBI", *instruction)
    for instruction in [(0x20, 0, 0, 0), (0x15, 0, 1, SCHED_YIELD), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
)
TRY_SCHED_YIELD = "import os\ntry:\n    os.sched_yield()\n    r = 'allowed'\nexcept PermissionError:\n    r = 'refused'\nr"


@pytest.fixture(scope="module")
def zygote():
    zygote = ZygoteProcess(preload=["json", "no_such_module"], seccomp=SECCOMP)
    yield zygote
    assert zygote.close() == 0


@pytest.fixture(scope="module")
def sandbox():
    sandbox = Sandbox()
    yield sandbox
    sandbox.close()


def status_of(client):
    text = client.run("print(open('/proc/self/status').read())").stdout
    return dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)


def test_ready_says_what_was_loaded(zygote):
    ready = zygote.ready
    assert ready["modules"] == ["json"]
    assert ready["failed"].keys() == {"no_such_module"}
    assert "ModuleNotFoundError" in ready["failed"]["no_such_module"]
    assert ready["threads"] == []
    assert ready["rss_kib"] > 5000


def test_only_the_control_socket_stays_open(zygote):
    fds = sorted(map(int, os.listdir(f"/proc/{zygote.process.pid}/fd")))
    assert fds[:3] == [0, 1, 2] and len(fds) == 4


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
def test_a_malformed_packet_is_answered_and_survived(zygote, packet):
    answer = zygote.request(packet)
    assert answer["op"] == "error" and answer["error"]


def test_descriptors_of_a_bad_request_are_closed(zygote):
    read, write = os.pipe()
    zygote.request({"op": "fork", "fds": ["control"]}, [write])
    os.close(write)
    assert os.read(read, 1) == b""
    os.close(read)


def test_forking_before_configuration_is_refused():
    zygote = ZygoteProcess(configure=False)
    answer, _ = zygote.try_fork()
    assert answer["op"] == "error" and "configured" in answer["error"]
    assert zygote.close() == 0


def test_interrupts_do_not_end_the_zygote(zygote):
    os.kill(zygote.process.pid, signal.SIGINT)
    assert zygote.request({"op": "nonsense"})["op"] == "error"


@needs_root
class TestInASandbox:
    def test_the_kernel_lives_in_the_sandbox(self, zygote, sandbox):
        kernel = zygote.fork(sandbox)
        namespaces = "user mnt net ipc uts pid cgroup".split()
        inside = kernel.run(f"import os\n[os.readlink('/proc/self/ns/' + n) for n in {namespaces}]").text
        assert eval(inside) == [os.readlink(f"/proc/{sandbox.init}/ns/{n}") for n in namespaces]
        assert kernel.run("os.getpid(), os.getppid()").text == f"({kernel.pid}, 1)"

    def test_it_has_no_privileges_left(self, zygote, sandbox):
        kernel = zygote.fork(sandbox)
        status = status_of(kernel)
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            assert int(status[name], 16) == 0, name
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"
        assert status["Uid"].split() == ["1000"] * 4
        assert status["Gid"].split() == ["1000"] * 4
        assert status["Groups"].strip() == ""
        assert kernel.run("import resource; resource.getrlimit(resource.RLIMIT_CORE)").text == "(0, 0)"
        assert kernel.run("import os; os.setuid(0)").error["name"] == "PermissionError"
        assert kernel.run(TRY_SCHED_YIELD).text == "'refused'"
        # Dumpable, or it could not look at itself.
        assert kernel.run("len(os.listdir('/proc/self/fd')) > 2").text == "True"

    def test_it_has_a_session_signals_and_environment_of_its_own(self, zygote, sandbox):
        kernel = zygote.fork(sandbox, cwd="/tmp", env={"HOME": "/tmp", "TZ": "Asia/Tokyo", "PYTHONPATH": "/extra"})
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

    def test_it_holds_no_descriptor_but_its_own(self, zygote, sandbox):
        kernel = zygote.fork(sandbox)
        # A few are open beside stdio: the control socket and the duplicates of stdio, all at high numbers.
        fds = eval(kernel.run("import os; sorted(map(int, os.listdir('/proc/self/fd')))").text)
        assert [fd for fd in fds if 3 < fd < 960] == []
        assert len([fd for fd in fds if fd >= 960]) == 4

    def test_randomness_is_not_shared(self, zygote, sandbox):
        code = "import random, uuid, multiprocessing.process as p\nrandom.random(), uuid.uuid4(), bytes(p.current_process().authkey)"
        first, second = (zygote.fork(sandbox).run(code).text for _ in range(2))
        assert first.startswith("(0.")
        assert all(a != b for a, b in zip(first.split(","), second.split(",")))

    def test_it_can_be_interrupted_and_runs_children(self, zygote, sandbox):
        kernel = zygote.fork(sandbox)
        kernel.start("print('started', flush=True)\nwhile True: pass")
        kernel.wait_for_stdout("started")
        os.kill(host_pid(sandbox, kernel.pid), signal.SIGINT)
        assert kernel.finish().status == "interrupted"
        assert kernel.run("import subprocess; subprocess.run('echo hi', shell=True).returncode").stdout == "hi\n"
        assert kernel.run("import multiprocessing as m, math\nwith m.get_context('fork').Pool(2) as p: r = p.map(abs, [-1])\nr").text == "[1]"

    def test_children_of_the_zygote_are_reaped(self, zygote, sandbox):
        for _ in range(3):
            zygote.fork(sandbox)
        deadline = time.monotonic() + 10
        while children_of(zygote.process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert children_of(zygote.process.pid) == []

    def test_a_sandbox_ends_although_the_zygote_has_forked_into_it(self, zygote):
        sandbox = Sandbox()
        zygote.fork(sandbox)
        started = time.monotonic()
        sandbox.close()
        assert time.monotonic() - started < 5

    def test_kernels_outlive_the_zygote(self, sandbox):
        zygote = ZygoteProcess()
        kernel = zygote.fork(sandbox)
        assert zygote.close() == 0
        assert kernel.run("6 * 7").text == "42"

    def test_a_failing_seal_is_fatal(self, zygote, sandbox):
        read, write = os.pipe()
        answer, kernel = zygote.try_fork(sandbox, landlock=read)
        assert answer["ok"]
        head, body = kernel.receive()
        assert head == {"op": "fatal"} and b"landlock_restrict_self" in body
        with pytest.raises(EOFError):
            kernel.receive()
        os.close(read)
        os.close(write)

    @pytest.mark.parametrize("options", [{"cwd": "/no/such/directory"}, {"uid": 100_000}])
    def test_a_place_or_identity_that_does_not_exist_is_fatal(self, zygote, sandbox, options):
        _, kernel = zygote.try_fork(sandbox, **options)
        assert kernel.receive()[0] == {"op": "fatal"}

    def test_a_bad_seccomp_program_is_fatal(self, sandbox):
        zygote = ZygoteProcess(seccomp=b"\xff" * 8)
        _, kernel = zygote.try_fork(sandbox)
        head, body = kernel.receive()
        assert head == {"op": "fatal"} and b"seccomp" in body
        zygote.close()

    def test_landlock_restricts_the_kernel(self, zygote, sandbox):
        ruleset = landlock_ruleset()
        kernel = zygote.fork(sandbox, landlock=ruleset)
        os.close(ruleset)
        assert kernel.run("open('/tmp/belljar-test', 'w')").error["name"] == "PermissionError"
        assert kernel.run("open('/etc/hostname').read() and 1").text == "1"

    def test_the_reason_of_a_failed_fork_is_told(self, zygote, sandbox):
        read, write = os.pipe()
        os.close(read)
        answer, _ = zygote.try_fork(sandbox, cgroups=[write])
        os.close(write)
        assert (answer["op"], answer["ok"]) == ("forked", False)
        assert "Broken pipe" in answer["error"]

    def test_a_dead_sandbox_is_an_error_and_the_zygote_goes_on(self, zygote, sandbox):
        dead = Sandbox()
        os.kill(dead.init, signal.SIGKILL)
        dead.process.stdin.close()
        dead.process.wait()
        answer, _ = zygote.try_fork(dead)
        assert not answer["ok"] and answer["error"]
        assert zygote.fork(sandbox).run("1").text == "1"

    def test_the_cgroup_is_joined_through_the_descriptor(self, zygote, sandbox):
        read, write = os.pipe()
        kernel = zygote.fork(sandbox, cgroups=[write, write])
        assert os.read(read, 16) == b"00"
        assert kernel.run("1").text == "1"
        os.close(read)
        os.close(write)

    def test_a_request_without_a_sandbox_is_refused_by_a_zygote_that_has_seen_one(self, zygote, sandbox):
        zygote.fork(sandbox)
        answer, _ = zygote.try_fork()
        assert not answer["ok"] and "pidfd" in answer["error"]


def test_inside_a_container_there_is_nothing_to_enter():
    zygote = ZygoteProcess(seccomp=SECCOMP)
    kernel = zygote.fork(uid=os.getuid(), gid=os.getgid())
    status = status_of(kernel)
    assert int(status["CapEff"], 16) == 0 and status["NoNewPrivs"] == "1"
    assert kernel.run(TRY_SCHED_YIELD).text == "'refused'"
    zygote.close()


@needs_ipython
def test_the_shell_exists_before_the_first_cell(zygote, sandbox):
    kernel = zygote.fork(sandbox)
    assert kernel.run("import sys; 'IPython' in sys.modules").text == "True"
    started = time.perf_counter()
    assert kernel.run("!echo hi").stdout == "hi\n"
    assert time.perf_counter() - started < 0.3


@needs_root
@needs_matplotlib
@needs_pandas
def test_preloaded_libraries_work_in_a_kernel(sandbox):
    zygote = ZygoteProcess(preload=["numpy", "pandas", "matplotlib.pyplot"])
    assert zygote.ready["threads"] == []
    assert len(os.listdir(f"/proc/{zygote.process.pid}/fd")) == 4
    kernels = [zygote.fork(sandbox) for _ in range(2)]
    randoms = {kernel.run("import numpy; numpy.random.random()").text for kernel in kernels}
    assert len(randoms) == 2
    result = kernels[0].run("import pandas, matplotlib.pyplot as plt\nplt.title('αβγ $x^2$')\npandas.DataFrame({'a': [1]})")
    assert "<table" in result.results[0]["text/html"]
    assert result.displays[0]["image/png"].startswith("iVBOR")
    assert result.stderr == ""
    zygote.close()


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


def host_pid(sandbox, inner):
    """The pid outside of a process of the sandbox."""
    for pid in children_of(sandbox.init):
        with open(f"/proc/{pid}/status") as status:
            if f"\t{inner}\n" in next(line for line in status if line.startswith("NSpid")):
                return int(pid)
    raise AssertionError(f"no process {inner} in the sandbox")


def landlock_ruleset():
    """A rule set that handles, and so forbids everywhere, writing and making files."""
    libc = ctypes.CDLL(None, use_errno=True)
    write_file, make_regular = 1 << 1, 1 << 8
    attribute = ctypes.c_uint64(write_file | make_regular)
    fd = libc.syscall(444, ctypes.byref(attribute), ctypes.c_size_t(8), ctypes.c_uint32(0))
    if fd < 0:
        pytest.skip("this Linux has no Landlock")
    return fd
