"""What the variables are: told within bounds, and without running anything of the user's."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from conftest import KernelProcess, has, needs_ipython, needs_pandas

needs_arrow = pytest.mark.skipif(not has("pyarrow"), reason="pyarrow is not installed")


def state(kernel: KernelProcess) -> Any:
    kernel.send({"op": "state"})
    head, body = kernel.receive()
    assert head == {"op": "state"}
    return json.loads(body)


def variables(kernel: KernelProcess, code: str) -> Any:
    result = kernel.run(code)
    assert result.status == "ok", result
    return {entry["name"]: entry for entry in state(kernel)["variables"]}


def previews(kernel: KernelProcess, code: str) -> Any:
    return {name: entry["preview"] for name, entry in variables(kernel, code).items()}


def test_a_fresh_kernel_has_nothing(kernel: KernelProcess) -> None:
    reply = state(kernel)
    assert (reply["variables"], reply["imports"], reply["truncated"]) == ([], [], 0)
    assert kernel.run("import os; os.getcwd()").text == repr(reply["cwd"])


def test_values_are_shown_as_repr_would(kernel: KernelProcess) -> None:
    shown = {
        "n": "42", "f": "1.5", "c": "(1+2j)", "t": "True", "none": "None", "s": '"it\'s"', "b": "b'\\x00'",
        "l": "[1, 'a', [2.0, None]]", "d": "{'k': {1: (2,)}}", "e": "()", "st": "{3}", "fs": "frozenset({4})", "es": "set()",
        "r": "range(0, 5)", "when": "datetime.date(2024, 2, 29)", "path": "PosixPath('/tmp')",
    }
    code = "import datetime, pathlib\n" + "\n".join(f"{name} = {text.replace('datetime.date', 'datetime.date').replace('PosixPath', 'pathlib.Path')}" for name, text in shown.items())
    assert previews(kernel, code) == shown


def test_types_and_sizes(kernel: KernelProcess) -> None:
    reply = variables(kernel, "import datetime, collections\nn = 1\ns = 'x' * 1000\nwhen = datetime.datetime(2024, 1, 1)\ncount = collections.Counter('aab')\nclass Mine: pass\nmine = Mine()")
    types = {name: entry["type"] for name, entry in reply.items()}
    assert types == {"n": "int", "s": "str", "when": "datetime.datetime", "count": "collections.Counter", "Mine": "class", "mine": "Mine"}
    assert reply["s"]["size"] > 1000
    assert reply["mine"]["preview"] == "<Mine>"
    assert "size" not in reply["mine"]


def test_functions_and_classes_have_signatures(kernel: KernelProcess) -> None:
    code = (
        "def f(a, /, b, c=1, *args, d, e='x', **rest): pass\ndef g(*, only): pass\nasync def h(): pass\nl = lambda x, y=[1]: x\n"
        "class C:\n    def __init__(self, left, right=None): pass\n    def m(self, z): pass\nclass D(C): pass\nclass E: pass\nm = C(1).m\nbuiltin = len"
    )
    assert previews(kernel, code) == {
        "f": "f(a, /, b, c=1, *args, d, e='x', **rest)", "g": "g(*, only)", "h": "async h()", "l": "<lambda>(x, y=[1])",
        "C": "C(left, right=None)", "D": "D(left, right=None)", "E": "E()", "m": "m(z)", "builtin": "len(...)",
    }


def test_modules_are_imports_and_private_names_are_private(kernel: KernelProcess) -> None:
    kernel.run("import json as j, os.path\nfrom math import pi\n_hidden = __mine__ = 1\n5")
    reply = state(kernel)
    assert {entry["name"]: entry["module"] for entry in reply["imports"]} == {"j": "json", "os": "os"}
    assert reply["imports"][0]["version"] == "2.0.9"
    assert [entry["name"] for entry in reply["variables"]] == ["pi"]


@needs_ipython
def test_what_ipython_has_put_there_is_not_told(kernel: KernelProcess) -> None:
    kernel.run("%time 1")
    assert state(kernel)["variables"] == []


HOSTILE = """
class Hostile:
    def _bad(self, *_, **__):
        print('I ran')
        import time
        while True: time.sleep(1)
    __repr__ = __str__ = __len__ = __iter__ = __getattr__ = __sizeof__ = __hash__ = __eq__ = __bool__ = __format__ = _bad
    __class__ = property(_bad)
    @property
    def shape(self): self._bad()
    @property
    def __dict__(self): self._bad()
hostile = Hostile()
inside = [hostile, {1: hostile}, (hostile,)]
class Meta(type):
    def _bad(cls, *_): print('I ran'); raise SystemExit
    __repr__ = __str__ = __getattribute__ = _bad
    __module__ = __name__ = property(_bad)
class Odd(metaclass=Meta): pass
odd = Odd()
def default(x=hostile): pass
class Text(str):
    def __repr__(self): print('I ran'); raise ValueError
text = Text('x')
class Listing(list):
    def __iter__(self): print('I ran'); raise ValueError
listing = Listing([1])
"""


def test_nothing_of_the_users_runs(kernel: KernelProcess) -> None:
    shown = previews(kernel, HOSTILE)
    assert shown["hostile"] == "<Hostile>"
    assert shown["inside"] == "[<Hostile>, {1: <Hostile>}, (<Hostile>,)]"
    assert shown["default"] == "default(x=<Hostile>)"
    assert (shown["odd"], shown["text"], shown["listing"]) == ("<Odd>", "<Text>", "<Listing>")
    assert kernel.take_output() == ("", "")


def test_everything_is_bounded(kernel: KernelProcess) -> None:
    code = (
        "s = 'x' * 50_000_000\nl = list(range(5_000_000))\nd = dict.fromkeys(range(1_000_000))\nnumber = 1 << 10_000_000\n"
        "deep = []\nfor _ in range(100_000): deep = [deep]\nself = []\nself.append(self)\nwide = [[['y' * 1000] * 1000] * 1000] * 1000\n"
    )
    kernel.run(code)
    start = time.monotonic()
    reply = state(kernel)
    assert time.monotonic() - start < 1
    shown = {entry["name"]: entry["preview"] for entry in reply["variables"]}
    assert all(len(preview) <= 200 for preview in shown.values())
    assert shown["number"] == "<int of 10000001 bits>"
    assert (shown["deep"], shown["self"]) == ("[[[[…]]]]", "[[[[…]]]]")
    assert shown["l"].endswith("… 5000000 in all]")


def test_many_variables_are_counted(kernel: KernelProcess) -> None:
    kernel.run("for n in range(600): globals()[f'v{n}'] = n")
    reply = state(kernel)
    assert (len(reply["variables"]), reply["truncated"]) == (500, 101)


def test_the_call_is_not_a_cell(kernel: KernelProcess) -> None:
    kernel.run("6 * 7")
    state(kernel)
    assert kernel.run("_").done["execution_count"] == 2
    kernel.send({"op": "ping", "token": 9})
    assert kernel.receive() == ({"op": "pong", "token": 9}, b"")


def test_a_directory_that_is_gone(kernel: KernelProcess) -> None:
    kernel.run("import os, tempfile\nd = tempfile.mkdtemp(); os.chdir(d); os.rmdir(d)")
    assert state(kernel)["cwd"] == ""


@needs_pandas
def test_tables_tell_shape_types_size_and_first_rows(kernel: KernelProcess) -> None:
    code = (
        "import numpy as np, pandas as pd\nframe = pd.DataFrame({'a': range(1000), 'b': ['x', 'y'] * 500})\nseries = frame['a']\n"
        "array = np.arange(12.0).reshape(3, 4)\nscalar = np.float64(2.5)\nempty = pd.DataFrame()\nwide = pd.DataFrame(np.zeros((2, 1000)))\nbig = np.zeros((1000, 1000))"
    )
    reply = variables(kernel, code)
    frame = reply["frame"]
    assert (frame["type"], frame["shape"]) == ("pandas.DataFrame", [1000, 2])
    assert frame["dtype"] in ("'a': int64, 'b': object", "'a': int64, 'b': str")  # pandas 2 and 3
    assert frame["preview"].splitlines()[:2] == ["   a  b", "0  0  x"]
    assert frame["size"] > 8000
    assert (reply["series"]["shape"], reply["series"]["dtype"]) == ([1000], "int64")
    assert reply["series"]["preview"].startswith("0    0\n1    1")
    assert (reply["array"]["type"], reply["array"]["shape"], reply["array"]["dtype"], reply["array"]["size"]) == ("numpy.ndarray", [3, 4], "float64", 96)
    assert reply["array"]["preview"].startswith("[[ 0.  1.  2.  3.]")
    assert (reply["scalar"]["type"], reply["empty"]["shape"]) == ("numpy.float64", [0, 0])
    assert reply["wide"]["dtype"].endswith("… 1000 columns")
    assert (reply["big"]["size"], reply["big"]["preview"][-1]) == (8_000_000, "…")
    assert [entry["module"] for entry in state(kernel)["imports"]] == ["numpy", "pandas"]


@needs_pandas
def test_tables_of_the_users_objects_run_nothing_either(kernel: KernelProcess) -> None:
    code = (
        "class Loud:\n    def __repr__(self): print('I ran'); raise ValueError\n    __str__ = __format__ = __repr__\n"
        "import numpy as np, pandas as pd\nobjects = np.array([Loud(), 1], dtype=object)\n"
        "cells = pd.Series([Loud(), 1], dtype=object)\nframe = pd.DataFrame({'c': cells})\nnamed = pd.Series([1], index=[Loud()])\n"
    )
    reply = variables(kernel, code)
    assert reply["objects"]["preview"] == "<array of objects: [<Loud>, 1]>"
    assert (reply["cells"]["preview"], reply["cells"]["shape"]) == ("[<Loud>, 1]", [2])
    assert (reply["frame"]["preview"], reply["frame"]["shape"]) == ("columns: 'c'", [2, 1])
    assert reply["named"]["preview"] == "[1]"
    assert kernel.take_output() == ("", "")


@needs_arrow
def test_arrow_tables(kernel: KernelProcess) -> None:
    reply = variables(kernel, "import pyarrow as pa\ntable = pa.table({'a': [1, 2], 'b': ['x', None]})\ncolumn = pa.array([1, 2, 3])")
    assert (reply["table"]["type"], reply["table"]["shape"], reply["table"]["dtype"]) == ("pyarrow.Table", [2, 2], "a: int64, b: string")
    assert reply["table"]["preview"] == "{'a': [1, 2], 'b': ['x', None]}"
    assert (reply["column"]["shape"], reply["column"]["preview"], reply["column"]["size"]) == ([3], "[1, 2, 3]", 24)


@needs_pandas
def test_what_takes_long_is_cut_off_and_the_rest_counted(kernel: KernelProcess) -> None:
    code = (
        "import pandas as pd, time\nfirst = 1\nframe = pd.DataFrame({'a': [1]})\nlast = 2\n"
        "def slow(*_, **__):\n    print('begun', flush=True)\n    while True:\n        try: time.sleep(100)\n        except Exception: pass\n"
        "pd.DataFrame.to_string = slow"
    )
    kernel.run(code)
    start = time.monotonic()
    reply = state(kernel)
    assert time.monotonic() - start < 3
    assert [entry["name"] for entry in reply["variables"]] == ["first"]
    assert reply["truncated"] == 3
    assert kernel.run("signal = __import__('signal'); signal.getsignal(signal.SIGALRM)").text == "<Handlers.SIG_DFL: 0>"


@needs_pandas
def test_an_interrupt_ends_it(kernel: KernelProcess) -> None:
    kernel.run("import pandas as pd, time\nframe = pd.DataFrame({'a': [1]})\ndef slow(*_, **__):\n    print('begun', flush=True)\n    while True:\n        try: time.sleep(100)\n        except BaseException as e:\n            if isinstance(e, KeyboardInterrupt): raise\npd.DataFrame.to_string = slow")
    kernel.send({"op": "state"})
    kernel.wait_for_stdout("begun")
    kernel.interrupt()
    head, body = kernel.receive()
    assert (head, body) == ({"op": "state"}, b"")
    assert kernel.run("1 + 1").text == "2"
