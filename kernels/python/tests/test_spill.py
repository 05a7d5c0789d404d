"""Large values of an idle kernel go to disk, and are back, the same as before, before the user's code runs again."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from conftest import TIMEOUT, KernelProcess, has, needs_ipython, needs_pandas

pytestmark = [
    needs_pandas,
    pytest.mark.skipif(not has("pyarrow"), reason="pyarrow is not installed"),
    pytest.mark.skipif(os.path.isdir("/workspace") or os.path.isdir("/session"), reason="would write to a real place"),
]

PAGE = os.sysconf("SC_PAGE_SIZE")


class Spiller(KernelProcess):
    """A kernel in a directory of its own, with what its cells need."""

    def __init__(self, directory: Any) -> None:
        super().__init__(env={"HOME": str(directory)})
        self.directory = directory
        self.ok(f"import os, sys, gc; os.chdir({str(directory)!r}); import numpy as np, pandas as pd, pyarrow as pa; rng = np.random.default_rng(1)")

    def ok(self, code: str) -> Any:
        result = self.run(code)
        assert result.status == "ok", f"{code}\n{result.error and result.error['traceback']}"
        return result.text

    def spill(self, **options: Any) -> Any:
        self.ask(**options)
        return self.answer()

    def ask(self, **options: Any) -> None:
        self.send({"op": "spill", "frame_bytes": 50_000, "array_bytes": 50_000, **options})

    def wait_until_it_writes(self) -> None:
        """Waits until the kernel has a file of a value open."""
        deadline = time.monotonic() + TIMEOUT
        descriptors = Path(f"/proc/{self.process.pid}/fd")
        while time.monotonic() < deadline:
            for descriptor in descriptors.iterdir():
                with suppress(OSError):
                    if "/.spilled/" in os.readlink(descriptor):
                        return
            time.sleep(0.002)
        raise AssertionError("no file was opened")

    def answer(self) -> Any:
        head, body = self.receive()
        assert head == {"op": "spilled"}
        return json.loads(body)

    def went(self, **options: Any) -> Any:
        """The names of what went to disk, in their order."""
        report = self.spill(**options)
        return sorted(entry["name"] for entry in report["spilled"])

    def stayed(self, **options: Any) -> Any:
        return {entry["name"]: entry["reason"] for entry in self.spill(**options)["stayed"]}

    def files(self) -> Any:
        folder = self.directory / "data" / ".spilled"
        return sorted(os.listdir(folder)) if folder.exists() else []

    def state(self) -> Any:
        self.send({"op": "state"})
        head, body = self.receive()
        assert head == {"op": "state"}
        return {entry["name"]: entry for entry in json.loads(body)["variables"]}

    def private_mib(self) -> Any:
        with open(f"/proc/{self.process.pid}/statm") as file:
            fields = file.read().split()
        return (int(fields[1]) - int(fields[2])) * PAGE / (1 << 20)


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Any]:
    kernel = Spiller(tmp_path)
    yield kernel
    kernel.kill()


FRAME = "df = pd.DataFrame({'a': np.arange(100_000), 'b': rng.random(100_000), 'c': [f'row {n}' for n in range(100_000)]})"


def test_values_go_and_come_back_and_leave_no_file(kernel: Spiller) -> None:
    kernel.ok(FRAME + "; x = rng.random((300, 400)); s = pd.Series(rng.random(50_000), name='s'); t = pa.table({'k': np.arange(50_000), 'v': ['x', None] * 25_000})")
    kernel.ok("before = [df.copy(), x.copy(), s.copy(), pa.table(t.to_pydict())]; small = np.arange(3); n = 5")
    assert kernel.went() == ["df", "s", "t", "x"]
    assert kernel.files() == ["df.parquet", "s.parquet", "t.parquet", "x.npy"]
    assert kernel.ok("small.sum(), n") == "(np.int64(3), 5)"
    assert kernel.files() == []
    kernel.ok("pd.testing.assert_frame_equal(df, before[0], check_exact=True); assert (x == before[1]).all() and x.flags.owndata")
    kernel.ok("pd.testing.assert_series_equal(s, before[2], check_exact=True); assert t.equals(before[3], check_metadata=True)")


def test_files_are_what_they_say(kernel: Spiller) -> None:
    kernel.ok(FRAME + "; x = np.asfortranarray(rng.random((300, 400)))")
    kernel.ok("df.index.name = 'i'; wide = pd.DataFrame(rng.random((5_000, 4)), columns=list('pqrs'), index=pd.date_range('2020', periods=5_000, name='day'))")
    kernel.spill()
    code = (
        f"import numpy as np, pandas as pd; d = {str(kernel.directory)!r} + '/data/.spilled/'; df = pd.read_parquet(d + 'df.parquet'); "
        "assert sorted(df.columns) == ['a', 'b', 'c'] and df.a.sum() == 4999950000 and df.c[7] == 'row 7', df; "
        "w = pd.read_parquet(d + 'wide.parquet'); assert sorted(w.columns) == ['day', 'p', 'q', 'r', 's'], w; "
        "x = np.load(d + 'x.npy'); assert x.shape == (300, 400) and x.flags.f_contiguous"
    )
    subprocess.run([kernel.python, "-c", code], check=True)


def test_memory_is_given_back(kernel: Spiller) -> None:
    kernel.ok("x = np.ones((100, 100)); df = pd.DataFrame(x); df.sum()")
    before = kernel.private_mib()
    kernel.ok("df = pd.DataFrame(rng.random((500_000, 20))); x = np.ones(15_000_000)")
    assert kernel.private_mib() > before + 180
    assert kernel.went() == ["df", "x"]
    assert kernel.private_mib() < before + 40
    kernel.ok("assert x.sum() == 15_000_000 and df.shape == (500_000, 20)")


def test_it_needs_little_memory_itself(kernel: Spiller) -> None:
    kernel.ok("x = rng.random(20_000_000); df = pd.DataFrame({str(n): rng.random(200_000) for n in range(50)})")
    kernel.run("import resource")
    peak = int(kernel.ok("resource.getrusage(resource.RUSAGE_SELF).ru_maxrss"))
    kernel.spill()
    after = int(kernel.ok("resource.getrusage(resource.RUSAGE_SELF).ru_maxrss"))
    assert after < peak + 150_000, "KiB: neither writing nor coming back takes the values twice"


def test_what_is_on_disk_is_told_and_not_loaded(kernel: Spiller) -> None:
    kernel.ok(FRAME + "; x = np.zeros((1000, 20)); y = x; n = 1")
    before = kernel.state()
    kernel.spill()
    files = kernel.files()
    reply = kernel.state()
    assert kernel.files() == files
    assert {name: entry.pop("on_disk", False) for name, entry in reply.items()} == {"rng": False, "df": True, "x": True, "y": True, "n": False}
    assert reply == before
    assert (reply["df"]["type"], reply["df"]["shape"], reply["x"]["dtype"]) == ("pandas.DataFrame", [100_000, 3], "float64")
    assert list(reply) == list(before), "the order of names stays"


def test_thresholds(kernel: Spiller) -> None:
    kernel.ok("a = np.zeros(10_000); s = pd.Series(np.zeros(10_000)); df = pd.DataFrame({'a': np.zeros(10_000)})")
    assert kernel.went(frame_bytes=1 << 30, array_bytes=80_000) == ["a"]
    kernel.ok("a")
    assert kernel.went(frame_bytes=80_000, array_bytes=80_001) == ["df", "s"]
    kernel.ok("del __import__('builtins')._")
    assert kernel.went(frame_bytes=80_001, array_bytes=80_001) == []


def test_asked_again_it_goes_again(kernel: Spiller) -> None:
    kernel.ok(FRAME)
    for n in range(5):
        assert kernel.went() == ["df"]
        assert kernel.went() == [], "it is there already"
        kernel.ok(f"df.loc[0, 'a'] = {n}; df['new{n}'] = df.b * 2")
    assert kernel.ok("df.shape, int(df.a[0]), bool((df.new3 == df.b * 2).all())") == "((100000, 8), 4, True)"


# Who else has it


def test_aliases_and_views_stay_what_they_are(kernel: Spiller) -> None:
    kernel.ok("a = rng.random(100_000); b = a; view = a[10:50_000:2]; back = a[::-1]; matrix = a.reshape(100, 1000); turned = matrix.T; typed = a.view('i8')")
    kernel.ok("ro = a[:]; ro.flags.writeable = False; expected = a.copy()")
    assert kernel.went() == ["a", "back", "expected", "matrix", "ro", "turned", "typed", "view"]
    assert kernel.files() == ["a.npy", "expected.npy"]
    kernel.ok("assert b is a and (a == expected).all() and view.base is a and turned.shape == (1000, 100)")
    kernel.ok("a[10] = 5.5; assert view[0] == 5.5 and back[-11] == 5.5 and matrix[0, 10] == 5.5 and turned[10, 0] == 5.5 and ro[10] == 5.5")
    kernel.ok("assert typed[10] == np.float64(5.5).view('i8') and not ro.flags.writeable and view.strides == (16,)")


def test_copy_on_write_still_works(kernel: Spiller) -> None:
    kernel.ok("df = pd.DataFrame({'a': np.zeros(50_000), 'b': np.zeros(50_000)}); s = df['a']; shallow = df.copy(deep=False); part = df.iloc[100:40_000]")
    assert kernel.went() == ["df", "part", "s", "shallow"]
    assert kernel.files() == ["df.parquet"]
    kernel.ok("df.iloc[200, 0] = 1.0; df.iloc[200, 1] = 2.0; assert s[200] == 0 and shallow.a[200] == 0 and part.a[200] == 0")
    kernel.ok("s[300] = 7.0; assert df.a[300] == 0 and shallow.a[300] == 0")
    kernel.ok("df = pd.DataFrame({'a': np.zeros(50_000), 'b': np.zeros(50_000)}); kept = [df['b']]")
    assert "df" not in kernel.went()
    kernel.ok("df.iloc[200, 1] = 2.0; assert kept[0][200] == 0")
    kernel.ok("i = pd.Index(np.arange(50_000)); t = i.to_series(index=range(50_000), name='t')")
    kernel.spill()
    kernel.ok("t.iloc[5] = 99; assert i[5] == 5 and t.iloc[5] == 99")


def test_what_others_have_stays_in_memory(kernel: Spiller) -> None:
    code = """
inlist = pd.DataFrame({'a': rng.random(50_000)}); things = [inlist]
indict = rng.random(50_000); table = {'x': indict}
defaulted = rng.random(50_000)
def f(x=defaulted): return x
classy = rng.random(50_000)
class C: data = classy
def outer():
    captured = closed
    return lambda: captured
closed = rng.random(50_000); inner = outer()
def generate(): 
    yield given
    yield
given = rng.random(50_000); running = generate(); mine = next(running); del mine
import weakref
weak = pd.DataFrame({'a': rng.random(50_000)}); ref = weakref.ref(weak)
own = pd.DataFrame({'a': rng.random(50_000)}); object.__setattr__(own, 'mine', 1)
import types
module = types.ModuleType('m'); moduled = module.x = rng.random(50_000)
class Sub(np.ndarray): pass
sub = rng.random(50_000).view(Sub)
class Frame(pd.DataFrame): pass
subframe = Frame({'a': rng.random(50_000)})
def raising():
    local = raised
    raise ValueError
raised = rng.random(50_000)
try: raising()
except ValueError as e: error = e
free = rng.random(50_000)
"""
    kernel.ok(code)
    report = kernel.spill()
    assert sorted(entry["name"] for entry in report["spilled"]) == ["free", "given"]
    stayed = {entry["name"] for entry in report["stayed"]}
    assert stayed == {"inlist", "indict", "defaulted", "classy", "closed", "weak", "own", "moduled", "raised"}
    kernel.ok("assert things[0] is inlist and table['x'] is indict and f() is defaulted and C.data is classy and inner() is closed")
    kernel.ok("assert ref() is weak and own.mine == 1 and module.x is moduled and error.__traceback__.tb_next.tb_frame.f_locals['local'] is raised")


def test_parts_that_others_have_stay_the_same_objects(kernel: Spiller) -> None:
    kernel.ok("index = pd.Index([f'k{n}' for n in range(50_000)]); df = pd.DataFrame({'a': rng.random(50_000)}, index=index); other = pd.Series(rng.random(50_000), index=index)")
    kernel.ok("cat = pd.Categorical(['x', 'y'] * 25_000); frame = pd.DataFrame({'c': cat, 'd': rng.random(50_000)}); inside = frame['c'].array; columns = df.columns; note = {'k': [1]}; df.attrs['note'] = note")
    assert kernel.went() == ["df", "frame", "other"]
    kernel.ok("assert df.index is index and other.index is index and frame['c'].array is inside and df.columns is columns and df.attrs['note'] is note")
    # Shared by two that go, and held by nobody else.
    kernel.ok("del index")
    assert kernel.went() == ["df", "frame", "other"]
    kernel.ok("assert df.index is other.index and df.index[7] == 'k7'")


def test_memory_of_somebody_else(kernel: Spiller) -> None:
    kernel.ok("a = rng.random(50_000); df = pd.DataFrame({'a': a}, copy=False); buffer = bytearray(800_000); over = np.frombuffer(buffer); ro = np.frombuffer(bytes(800_000)); m = np.lib.stride_tricks.as_strided(rng.random(60_000), (50_000,), (8,))")
    went = kernel.went()
    assert "a" in went
    assert "over" not in went
    assert "ro" in went
    kernel.ok("a[3] = 42.0; shares = np.shares_memory(df['a'].to_numpy(), a); buffer[0:8] = np.float64(7).tobytes()")
    assert kernel.ok("shares, float(over[0]), bool(shares == (df['a'][3] == 42.0)), ro.flags.writeable") == "(True, 7.0, True, False)"


def test_the_last_result_goes_with_its_variable(kernel: Spiller) -> None:
    kernel.ok(FRAME)
    kernel.ok("df")
    assert kernel.went() == ["df"]
    kernel.ok("assert _ is df and len(_) == 100_000")
    kernel.ok("rng.random(100_000)")
    assert kernel.went() == ["_", "df"]
    assert kernel.ok("_.shape") == "(100000,)"


# Ways to use it


USES = {
    "name": "len(df)",
    "function": "use()",
    "nested": "(lambda: [use() for _ in range(1)][0])()",
    "method": "C().use()",
    "class body": "type('D', (), {'n': len(df)}).n",
    "comprehension": "[len(df) for _ in [0]][0]",
    "eval": "eval('len(d' + 'f)')",
    "exec": "exec('n = len(d' + 'f)') or n",
    "globals": "len(globals()['d' + 'f'])",
    "vars": "len(vars()['df'])",
    "module": "len(getattr(__import__('__main__'), 'd' + 'f'))",
    "sys.modules": "len(sys.modules['__main__'].__dict__['df'])",
    "frame": "len(sys._getframe().f_globals['df'])",
    "query": "len(df.query('a in @wanted')) * 50_000",
    "string": "len(pd.eval('d' 'f'))",
    "pickled function": "__import__('pickle').loads(pickled)()",
    "callback": "callbacks[0]()",
    "partial": "__import__('functools').partial(use)()",
    "generator": "next(lazy)",
    "await": "await coroutine()",
    "property": "p.n",
    "repr": "int(repr(p))",
    "getattr": "use.__globals__['df'].shape[0]",
    "thread": "(t := __import__('threading').Thread(target=lambda: out.append(len(df))), t.start(), t.join(), out[-1])[-1]",
    "rebound": "(globals().__setitem__('df', df.copy()), len(df))[1]",
}


def test_every_use_finds_it(kernel: Spiller) -> None:
    kernel.ok(FRAME + """
wanted = np.arange(2.0); out = []
def use(): return len(df)
class C:
    def use(self): return len(df)
class P:
    n = property(lambda self: len(df))
    def __repr__(self): return str(len(df))
p = P()
import pickle; pickled = pickle.dumps(use); callbacks = [lambda: len(df)]
lazy = (len(df) for _ in range(100))
async def coroutine(): return len(df)
""")
    for name, code in USES.items():
        assert kernel.went() == ["df"], name
        assert kernel.ok(code) == "100000", name


@needs_ipython
def test_magics_find_it(kernel: Spiller) -> None:
    kernel.ok(FRAME)
    kernel.ok("%time 1")
    assert kernel.went() == ["df"]
    assert "100000" in kernel.run("%time print(len(df))").stdout
    assert kernel.went() == ["df"]
    assert "df" in kernel.run("%who DataFrame").stdout


def test_names_can_be_deleted_and_bound_anew(kernel: Spiller) -> None:
    kernel.ok(FRAME + "; x = rng.random(100_000); y = x")
    assert kernel.went() == ["df", "x"]
    kernel.ok("del df; x = 1")
    assert kernel.files() == []
    assert kernel.ok("'df' in globals(), x, y.shape") == "(False, 1, (100000,))"
    assert kernel.went() == ["y"]
    kernel.ok("def f():\n    global y\n    y = 2\nf()")
    assert (kernel.files(), kernel.ok("y")) == ([], "2")
    assert kernel.went() == []


def test_a_cell_that_fails_or_is_interrupted_finds_it_later(kernel: Spiller) -> None:
    kernel.ok(FRAME)
    kernel.spill()
    assert kernel.run("1 / 0").error["name"] == "ZeroDivisionError"
    kernel.spill()
    kernel.start("import time; print('begun', flush=True); time.sleep(1000)")
    kernel.wait_for_stdout("begun")
    kernel.interrupt()
    assert kernel.finish().status == "interrupted"
    kernel.spill()
    assert kernel.run("a b").error["name"] == "SyntaxError"
    assert kernel.ok("len(df)") == "100000"


def test_a_forked_child_has_it_too(kernel: Spiller) -> None:
    kernel.ok(FRAME)
    kernel.spill()
    result = kernel.run("pid = os.fork()\nif pid == 0:\n    print('child', len(df), flush=True); os._exit(0)\nos.waitpid(pid, 0); len(df)")
    assert (result.stdout, result.text) == ("child 100000\n", "100000")


def test_exit_handlers_find_it(kernel: Spiller) -> None:
    kernel.ok(FRAME + "; import atexit; atexit.register(lambda: print('at exit', len(df)))")
    assert kernel.went() == ["df"]
    code, out, err = kernel.shutdown()
    assert (code, out, err, kernel.files()) == (0, "at exit 100000\n", "", [])


def test_nothing_of_the_users_runs_meanwhile(kernel: Spiller) -> None:
    kernel.ok(FRAME + """
class Loud:
    def __init__(self): self.me = self
    def __del__(self): print('deleted with', type(df).__name__, flush=True)
    def __reduce__(self): print('I ran'); raise ValueError
    __eq__ = __hash__ = __repr__ = lambda *a: print('I ran')
class Meta(type):
    def _bad(cls, *_): print('I ran'); raise SystemExit
    __repr__ = __str__ = __getattribute__ = __hash__ = __eq__ = _bad
    __module__ = __name__ = property(_bad)
class Odd(metaclass=Meta): pass
df.attrs['loud'] = loud = Loud()
df.attrs['odd'] = [Odd(), {1: Odd}]
class Key:
    def __hash__(self): printing and print('I ran'); return 1
printing = False; df.attrs['keys'] = {Key(): 1}; printing = True
df2 = pd.DataFrame(rng.random((50_000, 3)), columns=pd.Index([loud, 'b', 'c'], dtype=object))
Loud(); gc.collect()
""")
    kernel.take_output()
    kernel.ok("gc.disable(); Loud(); gc.enable()")
    kernel.went()
    for _ in range(200):
        kernel.state()
    kernel.ok("assert df.attrs['loud'] is loud")
    assert kernel.take_output()[0] in ("", "deleted with DataFrame\n")
    assert kernel.ok("gc.isenabled()") == "True"
    kernel.ok("gc.disable()")
    kernel.spill()
    assert kernel.ok("gc.isenabled()") == "False"


def test_a_kernel_that_works_is_not_idle(kernel: Spiller) -> None:
    kernel.ok(FRAME + "; import threading, signal; stop = threading.Event(); t = threading.Thread(target=stop.wait, daemon=True); t.start()")
    report = kernel.spill()
    assert (report["spilled"], report["reason"]) == ([], "other threads are running")
    kernel.ok("stop.set(); t.join()")
    assert kernel.went() == ["df"]
    kernel.ok("before = signal.signal(signal.SIGUSR1, lambda *a: print(len(df)))")
    assert kernel.spill()["reason"] == "signal 10 has a handler"
    kernel.ok("signal.signal(signal.SIGUSR1, before) and None")
    assert kernel.went() == ["df"]


# Disturbances


def test_an_exec_that_arrives_meanwhile_does_not_wait(kernel: Spiller) -> None:
    kernel.ok("df = pd.DataFrame({str(n): rng.random(500_000) for n in range(40)}); copy = df.copy()")
    kernel.ask()
    kernel.wait_until_it_writes()
    start = time.monotonic()
    kernel.start("df.shape")
    report = kernel.answer()
    result = kernel.finish()
    assert (report["disturbed"], report["spilled"], result.text) == (True, [], "(500000, 40)")
    assert time.monotonic() - start < 2
    assert kernel.files() == []
    kernel.ok("assert df.equals(copy)")


def test_questions_are_answered_meanwhile(kernel: Spiller) -> None:
    kernel.ok("df = pd.DataFrame({str(n): rng.random(500_000) for n in range(20)})")
    kernel.ask()
    kernel.send({"op": "state"})
    kernel.send({"op": "ping", "token": 4})
    answers = [kernel.receive() for _ in range(3)]
    assert [head["op"] for head, _ in answers] == ["state", "pong", "spilled"]
    assert [entry["name"] for entry in json.loads(answers[2][1])["spilled"]] == ["df"]


def test_files_may_be_removed_or_renamed(kernel: Spiller) -> None:
    kernel.ok(FRAME + "; x = rng.random(100_000); total = x.sum()")
    kernel.spill()
    folder = kernel.directory / "data" / ".spilled"
    (folder / "df.parquet").unlink()
    (folder / "x.npy").rename(kernel.directory / "data" / "mine.npy")
    kernel.ok("assert len(df) == 100_000 and x.sum() == total")
    assert sorted(os.listdir(kernel.directory / "data")) == [".spilled", "mine.npy"]


def test_a_file_that_was_changed_is_noticed(kernel: Spiller) -> None:
    kernel.ok(FRAME + "; n = 1")
    kernel.spill()
    path = kernel.directory / "data" / ".spilled" / "df.parquet"
    with open(path, "r+b") as file:
        file.write(b"nonsense")
    result = kernel.run("n")
    assert (result.status, result.text) == ("ok", "1")
    assert result.stderr == f"belljar: df had been moved to disk and could not be brought back: {path} was changed\n"
    assert kernel.run("df").error["value"] == "name 'df' is not defined"
    assert path.exists()


def test_a_name_that_is_a_link_is_not_followed(kernel: Spiller) -> None:
    folder = kernel.directory / "data" / ".spilled"
    folder.mkdir(parents=True)
    target = kernel.directory / "precious"
    target.write_text("precious")
    (folder / "df.parquet").symlink_to(target)
    kernel.ok(FRAME)
    assert kernel.went() == ["df"]
    assert not (folder / "df.parquet").is_symlink()
    kernel.ok("len(df)")
    assert target.read_text() == "precious"


def test_a_place_that_cannot_be_written(kernel: Spiller) -> None:
    (kernel.directory / "data").write_text("a file")
    kernel.ok(FRAME)
    report = kernel.spill()
    assert report["spilled"] == []
    assert "Error" in report["reason"]
    assert kernel.ok("len(df)") == "100000"


WITHOUT_UNNAMED = "os.O_TMPFILE = os.O_DIRECTORY"


@pytest.mark.parametrize("setup", ["", WITHOUT_UNNAMED])
def test_killed_at_any_moment_it_leaves_whole_files(tmp_path: Path, setup: str) -> None:
    import numpy
    import pandas

    rows = 100_000
    moments = [0.0, 0.03, 0.06, 0.1, 0.2, 0.5]
    for number, moment in enumerate(moments):
        kernel = Spiller(tmp_path)
        try:
            kernel.ok(f"{setup}\ndf = pd.DataFrame({{str(n): rng.random({rows}) for n in range(10)}}); x = rng.random(1_000_000)")
            kernel.ask()
            time.sleep(moment)
        finally:
            kernel.kill()
        whole = [name for name in kernel.files() if not name.endswith(".part")]
        assert setup or whole == kernel.files(), "nothing has a name before it is whole"
        assert number > 0 or len(whole) < 2
        for path in (tmp_path / "data/.spilled" / name for name in whole):
            value = numpy.load(path) if path.suffix == ".npy" else pandas.read_parquet(path)
            assert value.shape == ((1_000_000,) if path.suffix == ".npy" else (rows, 10))
    # A successor replaces them, and what was left half-done is gone.
    kernel = Spiller(tmp_path)
    try:
        kernel.ok(FRAME)
        assert kernel.went() == ["df"]
        assert not [name for name in kernel.files() if name.endswith(".part")]
        assert kernel.ok("len(df)") == "100000"
        assert "df.parquet" not in kernel.files()
    finally:
        kernel.kill()


def test_without_unnamed_files_it_works_the_same(kernel: Spiller) -> None:
    kernel.ok(WITHOUT_UNNAMED + "\n" + FRAME + "\nx = rng.random(50_000); copy = [df.copy()]")
    assert kernel.went() == ["df", "x"]
    assert kernel.files() == ["df.parquet", "x.npy"]
    kernel.ok("assert df.equals(copy[0])")
    assert kernel.files() == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Any]:
    """A disk with room for two megabytes or so."""
    image = tmp_path / "disk"
    image.write_bytes(b"")
    os.truncate(image, 3 << 20)
    made = subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image)], capture_output=True)
    if made.returncode:
        pytest.skip("there is no mkfs.ext4 here")
    yield from _spiller_on(tmp_path, "-o", "loop", str(image))


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Any]:
    """A file system in memory, with plenty of room."""
    yield from _spiller_on(tmp_path, "-t", "tmpfs", "none")


def _spiller_on(tmp_path: Path, *mount: Any) -> Iterator[Any]:
    folder = tmp_path / "data"
    folder.mkdir()
    mounted = subprocess.run(["mount", *mount, str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    kernel = Spiller(tmp_path)
    yield kernel
    kernel.kill()
    subprocess.run(["umount", str(folder)], check=True)


def test_on_a_full_disk_values_stay(small_disk: Any) -> None:
    kernel = small_disk
    kernel.ok("big = pd.DataFrame(rng.random((500_000, 4))); plain = pd.DataFrame({'a': np.zeros(500_000), 'b': ['x'] * 500_000}); copy = big.copy()")
    report = kernel.spill()
    assert report["full"]
    assert [entry["name"] for entry in report["spilled"]] == ["plain"]
    reasons = {entry["name"]: entry["reason"] for entry in report["stayed"]}
    assert reasons["big"].startswith("there is no room for it in ")
    kernel.ok("assert big.equals(copy) and plain.b[499_999] == 'x'")
    assert kernel.files() == []


def test_where_files_are_memory_nothing_goes(in_memory: Any) -> None:
    kernel = in_memory
    kernel.ok("noise = pd.DataFrame(rng.random((20_000, 4))); plain = pd.DataFrame({'a': np.zeros(500_000)}); array = np.zeros(50_000)")
    report = kernel.spill()
    assert (report["spilled"], report["reason"], report["full"]) == ([], "", False)
    kernel.ok("assert len(plain) == 500_000 and not os.path.exists('data/.spilled')")


def test_many_values(kernel: Spiller) -> None:
    kernel.ok("for n in range(300): globals()[f'v{n}'] = np.full(10_000 + n, n)")
    report = kernel.spill()
    assert report["bytes"] == sum(8 * (10_000 + n) for n in range(100, 300))
    assert len(kernel.files()) == 200
    kernel.ok("assert all((globals()[f'v{n}'] == n).all() for n in range(300))")
    assert len(os.listdir(f"/proc/{kernel.process.pid}/fd")) < 20


def test_strange_names(kernel: Spiller) -> None:
    kernel.ok("globals()['a/b'] = np.zeros(10_000); ünïcode = np.ones(10_000); globals()['x' * 300] = np.ones(10_000); globals()[7] = np.zeros(10_000)")
    assert len(kernel.went()) == 3
    assert len(kernel.files()) == 3
    kernel.ok("assert globals()['a/b'].sum() == 0 and ünïcode.sum() == 10_000 and globals()['x' * 300].sum() == 10_000")


def test_a_kernel_without_the_libraries(tmp_path: Path) -> None:
    kernel = KernelProcess(env={"HOME": str(tmp_path)})
    try:
        kernel.run("x = 'x' * 10_000_000")
        kernel.send({"op": "spill"})
        head, body = kernel.receive()
        assert (head, json.loads(body)["spilled"]) == ({"op": "spilled"}, [])
    finally:
        kernel.kill()
