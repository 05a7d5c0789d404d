"""Tables that outlive the kernel."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from conftest import KernelProcess, needs_pandas

pytestmark = [
    needs_pandas,
    pytest.mark.skipif(
        os.path.isdir("/workspace") or os.path.isdir("/session"), reason="would write to a real place"
    ),
]


@pytest.fixture
def there(kernel: KernelProcess, tmp_path: Path) -> Any:
    """A kernel in a directory of its own."""
    kernel.run(f"import os; os.chdir({str(tmp_path)!r})\nimport pandas as pd")
    return kernel


def test_a_table_comes_back_as_it_was(there: Any, tmp_path: Path) -> None:
    code = "df = pd.DataFrame({'x': [1, 2], 'y': ['a', None]}, index=['i', 'j']); save(df, 'demo')"
    assert there.run(code).text == repr(f"{tmp_path}/data/demo.parquet")
    assert there.run("load('demo').equals(df), load('demo.parquet').shape").text == "(True, (2, 2))"
    assert there.run("save(df.x, 'folder/x'); load('folder/x').columns.tolist()").text == "['x']"
    there.run("save(df.head(1), 'demo')")
    assert there.run("len(load('demo'))").text == "1"
    assert os.listdir(f"{tmp_path}/data/folder") == ["x.parquet"]


def test_what_makes_no_sense_is_said(there: Any) -> None:
    for code, error in [
        ("load('none')", "there is no"),
        ("save('demo', pd.DataFrame())", "the DataFrame comes first"),
        ("save([1], 'demo')", "expected a DataFrame, got list"),
        ("save(pd.DataFrame(), '../up')", "is not the name of a file"),
        ("load('')", "is not the name of a file"),
        ("load(3)", "a name is text"),
    ]:
        result = there.run(code)
        assert error in result.error["value"], code


def test_a_table_that_cannot_be_written_leaves_the_old_one(there: Any, tmp_path: Path) -> None:
    there.run("save(pd.DataFrame({'x': [1]}), 'demo')")
    broken = there.run("save(pd.DataFrame({'x': [1, object()]}), 'demo')")
    assert broken.status == "error"
    assert there.run("load('demo').x.tolist()").text == "[1]"
    assert os.listdir(f"{tmp_path}/data") == ["demo.parquet"]


def test_a_variable_of_the_same_name_wins(there: Any) -> None:
    there.run("def load(name): return 'mine'")
    assert there.run("load('demo')").text == "'mine'"
