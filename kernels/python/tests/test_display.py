"""Values as mime bundles, their bounds, and figures."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import KernelProcess, needs_ipython, needs_matplotlib, needs_pandas

PNG = b"\x89PNG\r\n\x1a\n"

RICH = """
class Rich:
    def _repr_html_(self): return "<b>x</b>"
    def _repr_png_(self): return b"png bytes"
    def _repr_json_(self): return {"a": float("nan"), "b": [1]}
    def _repr_latex_(self): return "$x$", {"size": 1}
    def _repr_svg_(self): return None
    def __repr__(self): return "Rich()"
"""


@pytest.fixture(params=["plain", pytest.param("ipython", marks=needs_ipython)])
def both(request: Any, kernel: KernelProcess) -> Any:
    """A kernel before and after IPython is loaded: both must show the same."""
    if request.param == "ipython":
        assert kernel.run("import IPython").status == "ok"
    return kernel


def test_every_representation_is_sent(both: Any) -> None:
    both.run(RICH)
    result = both.run("Rich()")
    assert result.results == [
        {
            "text/plain": "Rich()",
            "text/html": "<b>x</b>",
            "text/latex": "$x$",
            "image/png": base64.b64encode(b"png bytes").decode(),
            "application/json": {"a": None, "b": [1]},
        }
    ]
    assert result.bundles[0]["metadata"] == {"text/latex": {"size": 1}}


def test_mimebundles_win_over_single_methods(both: Any) -> None:
    both.run(
        "class M:\n    def _repr_mimebundle_(self, include=None, exclude=None):\n"
        "        return {'text/html': 'bundle', 'application/x-y': 1}, {'m': 2}\n"
        "    def _repr_html_(self): return 'method'\n    def __repr__(self): return 'M'"
    )
    result = both.run("M()")
    assert result.results == [{"text/plain": "M", "text/html": "bundle", "application/x-y": 1}]


def test_display_is_always_there(both: Any) -> None:
    result = both.run(RICH + "display(Rich(), 5)\ndisplay({'text/plain': 'raw'}, raw=True)")
    assert [d["text/plain"] for d in result.displays] == ["Rich()", "5", "raw"]
    assert result.displays[0]["text/html"] == "<b>x</b>"
    assert result.results == []


def test_objects_may_display_themselves(both: Any) -> None:
    result = both.run("class S:\n    def _ipython_display_(self): print('myself')\nS()")
    assert (result.stdout, result.results) == ("myself\n", [])


def test_classes_and_mocks_are_not_asked_for_rich_forms(both: Any) -> None:
    assert both.run(RICH + "Rich").results[0].keys() == {"text/plain"}
    assert both.run("from unittest.mock import MagicMock\nMagicMock()").results[0].keys() == {"text/plain"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("raise ValueError('no')", "ValueError: no"),
        ("return 5", "TypeError"),
        ("return repr(self)", "RecursionError"),
        ("raise type('E', (Exception,), {'__str__': lambda s: 1/0})()", "E"),
    ],
)
def test_a_broken_repr_becomes_text(both: Any, body: Any, expected: Any) -> None:
    result = both.run(f"class Broken:\n    def __repr__(self): {body}\nBroken()")
    assert result.status == "ok"
    assert result.text.startswith("<Broken object")
    assert expected in result.text
    assert both.run("[Broken()]").status == "ok"


def test_a_broken_rich_repr_leaves_the_others(both: Any) -> None:
    result = both.run("class B:\n    def _repr_html_(self): raise ValueError('boom')\n    def __repr__(self): return 'B'\nB()")
    assert result.results == [{"text/plain": "B"}]
    assert "boom" in result.stderr


def test_long_containers_are_laid_out_and_cut(both: Any) -> None:
    assert both.run("list(range(40))").text.count("\n") == 1
    text = both.run("list(range(5000))").text
    assert text.endswith("999]\n... 1000 of 5000 items shown")
    assert both.run("{i: i for i in range(2000)}").text.endswith("1000 of 2000 items shown")


def test_huge_text_is_cut(both: Any) -> None:
    text = both.run("'x' * 3_000_000").text
    assert len(text) < (1 << 20) + 100
    assert text.endswith("cut here: 3000002 characters in all")


def test_huge_entries_are_dropped_with_a_note(both: Any) -> None:
    result = both.run(
        "class Big:\n    def _repr_png_(self): return b'x' * (7 << 20)\n    def _repr_html_(self): return 'small'\n"
        "    def __repr__(self): return 'Big'\nBig()"
    )
    (data,) = result.results
    size = len(base64.b64encode(b"x" * (7 << 20)))
    assert data == {"text/html": "small", "text/plain": f"Big\n[image/png dropped: {size} bytes, the limit is {8 << 20}]"}


def test_messages_are_strict_json(both: Any) -> None:
    both.run("class J:\n    def _repr_json_(self): return {'a': [float('inf')], 'b': {1, 2}, 'c': b'x'}\n    def __repr__(self): return '\\udc80'")
    both.start("J()")
    _, body = both.receive()
    data = json.loads(body.decode("utf-8"), parse_constant=lambda name: pytest.fail(name))["data"]
    assert data["application/json"] == {"a": [None], "b": "{1, 2}", "c": "eA=="}
    assert data["text/plain"] == "?"


@needs_pandas
def test_data_frames_are_tables(both: Any) -> None:
    (data,) = both.run("import pandas; pandas.DataFrame({'a': [1]})").results
    assert "<table" in data["text/html"]
    assert data["text/plain"] == "   a\n0  1"


def images(bundles: Any) -> Any:
    return [base64.b64decode(b["image/png"])[:8] for b in bundles if "image/png" in b]


@needs_matplotlib
def test_open_figures_are_shown_once_and_closed(both: Any) -> None:
    both.run("import matplotlib.pyplot as plt")
    result = both.run("plt.plot([1, 2])\nplt.figure(); plt.plot([3]);")
    assert images(result.displays) == [PNG, PNG]
    assert result.displays[0]["text/plain"] == "<Figure size 640x480 with 1 Axes>"
    assert result.stderr == ""
    assert both.run("plt.get_fignums()").messages[0][1] == b'{"data":{"text/plain":"[]"},"metadata":{}}'


@needs_matplotlib
def test_a_figure_as_result_is_not_shown_again(both: Any) -> None:
    result = both.run("import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nfig")
    assert (images(result.results), images(result.displays)) == ([PNG], [])
    # In a later cell it is shown again, since it may have changed.
    assert images(both.run("fig").results) == [PNG]


@needs_matplotlib
def test_show_sends_at_once(both: Any) -> None:
    result = both.run("import matplotlib.pyplot as plt\nfig = plt.figure()\nplt.show()\nprint('after')\nfig")
    assert (images(result.displays), images(result.results)) == ([PNG], [])
    assert result.text == "<Figure size 640x480 with 0 Axes>"
    assert (result.stdout, result.stderr) == ("after\n", "")


@needs_matplotlib
def test_figures_of_a_failing_cell_are_shown_and_other_backends_too(both: Any) -> None:
    result = both.run("import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\nplt.plot([1])\nplt.show()\n1/0")
    assert (result.status, images(result.displays), result.stderr) == ("error", [PNG], "")


@needs_matplotlib
def test_subprocesses_know_nothing_of_our_backend(kernel: KernelProcess) -> None:
    code = (
        "import matplotlib.pyplot, subprocess, sys\n"
        "subprocess.run([sys.executable, '-c', 'import matplotlib.pyplot as p; p.plot([1]); print(p.get_backend())'])"
    )
    assert kernel.run(code).stdout.lower() == "agg\n"


@needs_matplotlib
def test_the_font_cache_is_copied_when_matplotlib_is_imported(start_kernel: Callable[..., KernelProcess], tmp_path: Path) -> None:
    source, target = tmp_path / "cache", tmp_path / "config"
    source.mkdir()
    (source / "fontlist-v0.json").write_text("fonts")
    (source / "other").write_text("no")
    kernel = start_kernel("--font-cache", str(source), env={"MPLCONFIGDIR": str(target), "HOME": str(tmp_path)})
    kernel.run("import json")
    assert not target.exists()
    kernel.run("import matplotlib")
    assert (target / "fontlist-v0.json").read_text() == "fonts"
    assert not (target / "other").exists()
