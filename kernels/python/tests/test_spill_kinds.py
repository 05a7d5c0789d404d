"""Frames of every kind, made at random, are the same when they come back from disk: every bit, every label."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from conftest import has, needs_pandas
from test_spill import Spiller, pytestmark  # noqa: F401

if not has("hypothesis"):
    pytest.skip("hypothesis is not installed", allow_module_level=True)

from hypothesis import given, settings
from hypothesis import strategies as st

# Runs in the kernel: makes columns, indexes and labels by name, and compares what came back with a copy.
MAKERS = """
import datetime, decimal, pickle, zoneinfo

def holes(rng, values, hole, share=0.1):
    return [hole if rng.random() < share else value for value in values]

def floats(rng, n, kind):
    x = rng.standard_normal(n).astype(kind)
    if not n: return x
    for value in (np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0):
        x[rng.integers(0, n, 5)] = value
    if kind == 'f8':
        x[rng.integers(0, n)] = np.uint64(0x7ff8dead00000001).view('f8')
    return x

def ints(rng, n, kind):
    info = np.iinfo(kind)
    return rng.integers(info.min, info.max, n, dtype=kind, endpoint=True)

def times(rng, n, unit):
    x = rng.integers(-10**9, 2 * 10**9, n).astype('M8[s]').astype(f'M8[{unit}]')
    if n: x[rng.integers(0, n, 5)] = 'NaT'
    return x

def texts(rng, n):
    return [('é€😀' if k % 50 == 0 else '') + f'{k}' for k in rng.integers(0, 10**6, n)]

COLUMNS = {
    **{k: (lambda rng, n, k=k: ints(rng, n, k)) for k in 'i1 i2 i4 i8 u1 u2 u4 u8'.split()},
    **{k: (lambda rng, n, k=k: floats(rng, n, k)) for k in 'f2 f4 f8'.split()},
    'bool': lambda rng, n: rng.random(n) < 0.5,
    'c8': lambda rng, n: floats(rng, n, 'f4').astype('c8'),
    'c16': lambda rng, n: floats(rng, n, 'f8') + 1j * floats(rng, n, 'f8'),
    **{f'M8[{u}]': (lambda rng, n, u=u: times(rng, n, u)) for u in 's ms us ns'.split()},
    **{f'm8[{u}]': (lambda rng, n, u=u: times(rng, n, u).view('i8').view(f'm8[{u}]')) for u in 's ms us ns'.split()},
    'UTC': lambda rng, n: pd.DatetimeIndex(times(rng, n, 'us')).tz_localize('UTC'),
    'Berlin': lambda rng, n: pd.DatetimeIndex(times(rng, n, 'ns')).tz_localize('UTC').tz_convert('Europe/Berlin'),
    'offset': lambda rng, n: pd.DatetimeIndex(times(rng, n, 'ms')).tz_localize(datetime.timezone(datetime.timedelta(hours=5, minutes=45))),
    'category': lambda rng, n: pd.Categorical(holes(rng, rng.choice(list('abc'), n), None)),
    'ordered': lambda rng, n: pd.Categorical(rng.choice([3, 1, 2], n), categories=[3, 1, 2, 9], ordered=True),
    'many categories': lambda rng, n: pd.Categorical([f'k{k}' for k in range(n)]),
    **{k: (lambda rng, n, k=k: pd.array(holes(rng, rng.integers(0, 100, n).tolist(), None), dtype=k)) for k in 'Int8 Int16 Int32 Int64 UInt8 UInt16 UInt32 UInt64 Float32 Float64'.split()},
    'boolean': lambda rng, n: pd.array(holes(rng, (rng.random(n) < 0.5).tolist(), None), dtype='boolean'),
    'str': lambda rng, n: pd.array(holes(rng, texts(rng, n), None), dtype='str'),
    'string[python]': lambda rng, n: pd.array(holes(rng, texts(rng, n), None), dtype='string[python]'),
    'string[pyarrow]': lambda rng, n: pd.array(holes(rng, texts(rng, n), None), dtype='string[pyarrow]'),
    'object text': lambda rng, n: np.array(texts(rng, n), dtype=object),
    'object None': lambda rng, n: np.array(holes(rng, texts(rng, n), None), dtype=object),
    'object nan': lambda rng, n: np.array(holes(rng, texts(rng, n), np.nan), dtype=object),
    'object NA': lambda rng, n: np.array(holes(rng, texts(rng, n), pd.NA), dtype=object),
    'object mixed': lambda rng, n: np.array([None if k % 7 == 0 else np.nan if k % 7 == 1 else f'{k}' if k % 2 else k for k in range(n)], dtype=object),
    'object decimal': lambda rng, n: np.array([decimal.Decimal(k) / 7 for k in range(n)], dtype=object),
    'object list': lambda rng, n: pd.Series([[k] for k in range(n)], dtype=object),
    'object surrogate': lambda rng, n: pd.Series(['\\ud800'] * n, dtype=object),
    'object date': lambda rng, n: np.array([datetime.date(2020, 1, 1)] * n, dtype=object),
    'period': lambda rng, n: pd.period_range('1900', periods=n, freq='D').array,
    'interval': lambda rng, n: pd.arrays.IntervalArray.from_breaks(np.sort(rng.random(n + 1)), closed='left'),
    'sparse': lambda rng, n: pd.arrays.SparseArray(np.where(rng.random(n) < 0.9, 0, rng.random(n))),
    **{f'arrow {t}': (lambda rng, n, t=t: pd.array(holes(rng, rng.integers(0, 100, n).tolist(), None), dtype=pd.ArrowDtype(t))) for t in (pa.int64(), pa.int8(), pa.float64(), pa.timestamp('us', 'UTC'), pa.duration('ns'))},
    'arrow nan': lambda rng, n: pd.array(pa.array(floats(rng, n, 'f8')), dtype=pd.ArrowDtype(pa.float64())),
    'arrow bool': lambda rng, n: pd.array(holes(rng, [True, False] * (n // 2) + [True] * (n % 2), None), dtype=pd.ArrowDtype(pa.bool_())),
    'arrow list': lambda rng, n: pd.array(pa.array([[k, None] if k % 3 else None for k in range(n)]), dtype=pd.ArrowDtype(pa.list_(pa.int64()))),
    'arrow struct': lambda rng, n: pd.array(pa.array([{'x': k, 'y': str(k)} for k in range(n)]), dtype=pd.ArrowDtype(pa.struct([('x', pa.int64()), ('y', pa.string())]))),
    'arrow decimal': lambda rng, n: pd.array(pa.array([decimal.Decimal(k) for k in range(n)], pa.decimal128(20, 3)), dtype=pd.ArrowDtype(pa.decimal128(20, 3))),
    'arrow binary': lambda rng, n: pd.array(pa.array([b'\\xff' * (k % 5) for k in range(n)]), dtype=pd.ArrowDtype(pa.binary())),
    'arrow dictionary': lambda rng, n: pd.array(pa.array([str(k % 5) for k in range(n)]).dictionary_encode(), dtype=pd.ArrowDtype(pa.dictionary(pa.int32(), pa.string()))),
}

def multi(rng, n):
    return pd.MultiIndex.from_arrays([rng.integers(0, 50, n), rng.choice(list('xyz'), n), pd.DatetimeIndex(times(rng, n, 'ns'))], names=['a', None, 't'])

INDEXES = {
    'range': lambda rng, n: pd.RangeIndex(n),
    'steps': lambda rng, n: pd.RangeIndex(5, 5 + 3 * n, 3, name='steps'),
    'ints': lambda rng, n: pd.Index(rng.integers(0, n, n), name=('tu', 'ple')),
    'i2': lambda rng, n: pd.Index(ints(rng, n, 'i2')),
    'floats': lambda rng, n: pd.Index(floats(rng, n, 'f8')),
    'text': lambda rng, n: pd.Index(texts(rng, n), name='text'),
    'object': lambda rng, n: pd.Index([k if k % 2 else f'k{k}' for k in range(n)], dtype=object),
    'days': lambda rng, n: pd.date_range('2020-01-01', periods=n, freq='D', name='day'),
    'business': lambda rng, n: pd.date_range('2020-01-01', periods=n, freq='B'),
    'tz': lambda rng, n: pd.date_range('2020-01-01', periods=n, freq='h', tz='Europe/Berlin'),
    'irregular': lambda rng, n: pd.DatetimeIndex(times(rng, n, 'ms')),
    'deltas': lambda rng, n: pd.timedelta_range('1s', periods=n, freq='3s'),
    'periods': lambda rng, n: pd.period_range('1900-01', periods=n, freq='M'),
    'intervals': lambda rng, n: pd.interval_range(0, n),
    'categories': lambda rng, n: pd.CategoricalIndex(rng.choice(list('abc'), n), ordered=True),
    'multi': multi,
    'nullable': lambda rng, n: pd.Index(pd.array(holes(rng, list(range(n)), None), dtype='Int64')),
    'arrow': lambda rng, n: pd.Index(pd.array(texts(rng, n), dtype=pd.ArrowDtype(pa.string()))),
}

LABELS = {
    'text': lambda k: [f'c{i}' for i in range(k)],
    'numbers': lambda k: list(range(k)),
    'twice': lambda k: ['same'] * k,
    'mixed': lambda k: [(None, 1.5, 'x', (1, 2), pd.Timestamp('2020'))[i % 5] for i in range(k)],
    'multi': lambda k: pd.MultiIndex.from_tuples([(i // 2, f'{i}') for i in range(k)], names=['p', 'q']),
    'times': lambda k: pd.date_range('2020', periods=k, freq='D'),
}

def make(seed, n, columns, index, labels, turn):
    rng = np.random.default_rng(seed)
    parts = [pd.Series(COLUMNS[kind](rng, n), index=range(n), dtype=object if kind.startswith('object') else None) for kind in columns]
    frame = pd.concat(parts, axis=1) if parts else pd.DataFrame(index=range(n))
    frame.columns = LABELS[labels](len(columns))
    frame.index = INDEXES[index](rng, n)
    frame.attrs = {'source': {'seed': seed, 'tags': ['a', 'b']}, 5: None}
    frame.flags.allows_duplicate_labels = True
    if turn == 'slice': frame = frame.iloc[7:-7]
    if turn == 'every': frame = frame.iloc[::3]
    if turn == 'copy': frame = frame.copy()
    if turn == 'used': frame.index.get_indexer_for(frame.index[:3]); frame.memory_usage(); frame.index.is_unique
    if turn == 'single': frame = pd.DataFrame(rng.random((n, 5)), columns=list('abcde'))
    if turn == 'series' and columns: frame = frame.iloc[:, 0]
    if turn == 'unique' and labels not in ('twice', 'mixed') and frame.index.is_unique: frame = frame.set_flags(allows_duplicate_labels=False)
    return frame

def bits(column):
    x = column.array
    x = getattr(x, '_ndarray', x)
    return x.tobytes() if isinstance(x, np.ndarray) and not x.dtype.hasobject else None

def compare(ours, theirs):
    assert type(ours) is type(theirs)
    check = pd.testing.assert_series_equal if ours.ndim == 1 else pd.testing.assert_frame_equal
    check(ours, theirs, check_exact=True, check_freq=True, check_flags=True, check_index_type='exact', check_categorical=True)
    assert ours.attrs == theirs.attrs and vars(ours).keys() == vars(theirs).keys() - {'_typ'}
    for a, b in zip(ours.axes, theirs.axes):
        assert a.identical(b) and type(a) is type(b) and a.dtype == b.dtype and repr(a) == repr(b)
    if ours.ndim == 1:
        assert bits(ours) == bits(theirs) and ours.dtype == theirs.dtype
        return
    assert list(ours.dtypes) == list(theirs.dtypes) and len(ours._mgr.blocks) == len(theirs._mgr.blocks)
    for at in range(ours.shape[1]):
        a, b = ours.iloc[:, at], theirs.iloc[:, at]
        assert bits(a) == bits(b)
        if a.dtype == object:
            assert [type(x) for x in a] == [type(x) for x in b]

def work(frame):
    # It can be used and changed as any other.
    frame.copy(); repr(frame); frame.iloc[1:3]; frame.index.get_indexer_for(frame.index[:1])
    if frame.ndim == 2 and frame.shape[1]: frame.iloc[:, 0].isna().sum()
"""

COLUMNS = [*"i1 i2 i4 i8 u1 u2 u4 u8 f2 f4 f8 bool c8 c16 M8[s] M8[ms] M8[us] M8[ns] m8[s] m8[ms] m8[us] m8[ns] UTC Berlin offset " "category ordered Int8 Int64 UInt16 Float32 Float64 boolean str string[python] string[pyarrow] period interval sparse".split(), "many categories", "object text", "object None", "object nan", "object NA", "object mixed", "object decimal", "object list", "object surrogate", "object date", "arrow int64", "arrow double", "arrow timestamp[us, tz=UTC]", "arrow duration[ns]", "arrow nan", "arrow bool", "arrow list", "arrow struct", "arrow decimal", "arrow binary", "arrow dictionary"]
# Of these nothing goes to disk: bits are small, and what the others hold is no plain data.
SMALL = {"arrow bool"}
OBJECTS = {"object mixed", "object decimal", "object list", "object surrogate", "object date"}
INDEXES = "range steps ints i2 floats text object days business tz irregular deltas periods intervals categories multi nullable arrow".split()
LABELS = "text numbers twice mixed multi times".split()
TURNS = ["", "slice", "every", "copy", "used", "single", "series", "unique"]


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    kernel = Spiller(tmp_path_factory.mktemp("kinds"))
    kernel.ok(MAKERS)
    yield kernel
    kernel.kill()


def there_and_back(kernel: Spiller, seed: Any, rows: Any, columns: Any, index: Any, labels: Any, turn: Any) -> Any:
    kernel.ok(f"df = make({seed}, {rows}, {columns!r}, {index!r}, {labels!r}, {turn!r}); copy = [pickle.loads(pickle.dumps(df))]")
    report = kernel.spill(frame_bytes=20_000)
    kernel.ok("compare(df, copy[0]); work(df)")
    assert kernel.files() == []
    return report


@needs_pandas
@pytest.mark.parametrize("column", COLUMNS)
def test_every_kind_of_column(kernel: Spiller, column: Any) -> None:
    report = there_and_back(kernel, 7, 20_000, [column], "range", "text", "")
    assert ([entry["name"] for entry in report["spilled"]] == ["df"]) == (column not in OBJECTS | SMALL), report


@needs_pandas
@pytest.mark.parametrize("index", INDEXES)
def test_every_kind_of_index(kernel: Spiller, index: Any) -> None:
    report = there_and_back(kernel, 7, 20_000, ["f8", "str"], index, "text", "")
    assert [entry["name"] for entry in report["spilled"]] == ["df"], report


@needs_pandas
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.sampled_from([0, 1, 2_100, 3_001, 9_000]),
    columns=st.lists(st.sampled_from(COLUMNS), max_size=8),
    index=st.sampled_from(INDEXES),
    labels=st.sampled_from(LABELS),
    turn=st.sampled_from(TURNS),
)
def test_any_frame(kernel: Spiller, seed: Any, rows: Any, columns: Any, index: Any, labels: Any, turn: Any) -> None:
    there_and_back(kernel, seed, rows, columns, index, labels, turn)


ARRAYS = [
    "floats(rng, 20_000, 'f8').reshape(100, 200)", "np.asfortranarray(floats(rng, 20_000, 'f4').reshape(20, 1000))",
    "floats(rng, 24_000, 'f8').reshape(20, 30, 40)", "floats(rng, 24_000, 'f8').reshape(20, 30, 40).transpose(1, 0, 2)",
    "floats(rng, 24_000, 'f8').reshape(20, 30, 40).transpose(1, 0, 2).copy('K')", "times(rng, 20_000, 'ns')", "rng.random(20_000) < 0.5",
    "np.array(texts(rng, 5_000))", "np.char.encode(np.array(texts(rng, 9_000)), 'utf-8')", "floats(rng, 20_000, 'f8').astype('>f8')", "rng.random(20_000).astype('f2')",
    "rng.random(20_000).astype('longdouble')", "np.zeros(5_000, [('a', 'i4'), ('b', 'f8', 3), ('c', 'U5')])", "np.zeros(5_000, np.dtype([('a', 'i1'), ('b', 'i8')], align=True))",
    "np.zeros((0, 5_000))", "np.zeros(20_000, 'V7')", "np.broadcast_to(rng.random(20_000), (3, 20_000))", "floats(rng, 20_000, 'f8') + 1j", "np.zeros(10_000, 'M8[3D]')",
]


@needs_pandas
@pytest.mark.parametrize("array", ARRAYS)
def test_every_kind_of_array(kernel: Spiller, array: Any) -> None:
    kernel.ok(f"rng = np.random.default_rng(3); a = {array}; a.flags.writeable and a.setflags(write=len(a.shape) != 1); copy = [a.copy(), a.flags, a.strides, a.dtype]")
    kernel.ok("before = [str(a.flags), a.strides, a.dtype, a.tobytes()]; del copy")
    kernel.spill()
    kernel.ok("assert [a.strides, a.dtype, a.tobytes()] == before[1:] and str(a.flags) == before[0], (str(a.flags), before[0])")
    assert kernel.files() == []


@needs_pandas
def test_objects_in_arrays_stay(kernel: Spiller) -> None:
    kernel.ok("o = np.empty(20_000, dtype=object); o[:] = [[n] for n in range(20_000)]; same = [o, o[5]]; r = np.zeros(5_000, [('a', 'O'), ('b', 'f8')]); text = np.array([str(n) for n in range(20_000)], dtype=object)")
    report = kernel.spill()
    assert not {"o", "r", "text"} & {entry["name"] for entry in report["spilled"]}
    kernel.ok("assert same[0] is o and same[1] is o[5]; del o, r, text, same")


TABLES = [
    "pa.table({'a': ints(rng, 20_000, 'i8'), 'b': texts(rng, 20_000), 'a2': floats(rng, 20_000, 'f8')})",
    "pa.table([pa.array(ints(rng, 20_000, 'i8')), pa.array(ints(rng, 20_000, 'u1'))], names=['same', 'same'])",
    "pa.concat_tables([pa.table({'x': rng.random(5_000)})] * 4)",
    "pa.table({'x': rng.random(20_000)}).replace_schema_metadata({'k': 'v'})",
    "pa.table({'x': pa.array([str(k % 9) for k in range(20_000)]).dictionary_encode()})",
    "pa.table({'x': pa.array([{'a': [k]} for k in range(20_000)]), 'n': pa.nulls(20_000)})",
    "pa.table({'t': pa.array(range(20_000), pa.timestamp('s')), 'd': pa.array(range(20_000), pa.duration('ms')), 'h': pa.array(rng.random(20_000).astype('f2'))})",
    "pa.Table.from_pandas(pd.DataFrame({'a': rng.random(20_000)}, index=pd.date_range('2020', periods=20_000, freq='h')))",
    "pa.table({'x': rng.random(40_000)}).slice(11, 20_000)",
]


@needs_pandas
@pytest.mark.parametrize("table", TABLES)
def test_every_kind_of_table(kernel: Spiller, table: Any) -> None:
    kernel.ok(f"rng = np.random.default_rng(3); t = {table}; copy = [pickle.loads(pickle.dumps(t))]")
    kernel.spill()
    kernel.ok("assert t.schema.equals(copy[0].schema, check_metadata=True); t.validate(full=True); assert repr(t.to_pydict()) == repr(copy[0].to_pydict())")
    assert kernel.files() == []


@needs_pandas
def test_tables_that_share_memory_stay(kernel: Spiller) -> None:
    kernel.ok("t = pa.table({'a': np.arange(50_000), 'b': np.arange(50_000)}); u = t.select(['a']); v = t")
    stayed = kernel.stayed()
    assert {"t", "u"} <= set(stayed)
    kernel.ok("del u")
    assert "t" in kernel.went()
    kernel.ok("assert v is t")
