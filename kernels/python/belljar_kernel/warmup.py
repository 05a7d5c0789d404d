"""Imports modules and uses them once, before kernels start from the memory of this process.

Modules that build tables, compile patterns or import more on first use would do so in every kernel, in its own memory.
Here it happens once, in memory that all kernels share.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import sys

from . import seal

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Modules of the standard library that cells often use.
_STANDARD_LIBRARY = (
    "argparse asyncio base64 bisect calendar collections concurrent.futures.process "
    "concurrent.futures.thread contextlib copy csv ctypes dataclasses datetime decimal difflib enum "
    "fractions functools getpass glob gzip hashlib heapq html http.client inspect io itertools json "
    "logging math mimetypes multiprocessing.pool multiprocessing.popen_fork multiprocessing.queues "
    "multiprocessing.shared_memory multiprocessing.synchronize operator pathlib pickle platform pprint "
    "queue random re secrets shutil sqlite3 ssl statistics string subprocess tempfile textwrap threading "
    "time timeit traceback typing unicodedata urllib.request uuid warnings weakref xml.etree.ElementTree "
    "zipfile zoneinfo"
).split()

_HUGE_PAGE = 2 << 20

# Libraries read these when they are loaded. A thread of theirs would not exist in a kernel, but its locks would.
# Kernels have their own environment, without these.
_SINGLE_THREADED = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


def warm_up(modules: list[str]) -> dict[str, Any]:
    """Imports the modules, uses them once and removes traces of this process. Returns a report."""
    failed = _preload(modules)
    _forget_host()
    return {
        "python": "{}.{}.{}".format(*sys.version_info),
        "modules": [name for name in modules if name not in failed],
        "failed": failed,
        "threads": _other_threads(),
        "rss_kib": _resident_kib(),
    }


def _preload(names: list[str]) -> dict[str, str]:
    """Returns what failed, with the reason."""
    for name, value in _SINGLE_THREADED.items():
        os.environ.setdefault(name, value)
    failed: dict[str, str] = {}
    for name in names:
        _import(name, failed)
    for name in _STANDARD_LIBRARY:
        # Distributions omit some of them; they were not requested by name, so that is no failure.
        _import(name, {})
    if importlib.util.find_spec("IPython") is not None:
        _import("IPython", failed)
    for use in (_use_compiler, _use_ipython, _use_pandas, _use_matplotlib):
        _try(use, f"warm-up: {use.__name__[1:]}", failed)
    return failed


def _import(name: str, failed: dict[str, str]) -> None:
    _try(lambda: importlib.import_module(name), name, failed)


def _try(step: Callable[[], object], name: str, failed: dict[str, str]) -> None:
    try:
        step()
    except (Exception, SystemExit) as error:
        failed[name] = f"{type(error).__name__}: {error}"


def _forget_host() -> None:
    """Removes environment, signal handlers and other traces of this process, once instead of in every kernel."""
    os.environ.clear()
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            # Installed by a library. Signals that Python ignores (SIGPIPE) stay ignored.
            signal.signal(number, signal.SIG_DFL)
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        # It was found with this process's environment.
        tempfile.tempdir = None  # type: ignore[attr-defined]


def use_huge_pages() -> None:
    """Halves the time of a fork, which copies one page table entry per page.

    A kernel that writes to a huge page copies only four kilobytes of it. Linux before 6.1 does not support the request,
    and an empty range is refused; both are harmless.
    """
    with open("/proc/self/maps") as file:
        regions = [line.split() for line in file]
    for addresses, permissions, *rest in regions:
        anonymous = len(rest) < 4 or rest[3] == "[heap]"
        if permissions == "rw-p" and anonymous:
            start, end = (int(address, 16) for address in addresses.split("-"))
            for page in range(-(-start // _HUGE_PAGE) * _HUGE_PAGE, end - _HUGE_PAGE + 1, _HUGE_PAGE):
                seal.collapse_pages(page, _HUGE_PAGE)


def _other_threads() -> list[str]:
    """The names of all threads except the main one, from the system; there should be none."""
    names = []
    for task in os.listdir("/proc/self/task"):
        if int(task) != os.getpid():
            with open(f"/proc/self/task/{task}/comm") as file:
                names.append(file.read().strip())
    return names


def _resident_kib() -> int:
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024


def _use_compiler() -> None:
    # A kernel imports some of them late, and its sandbox does not have the files.
    from . import aio, display, snapshot, spill, state, tracebacks  # noqa: F401
    from .cells import Compiler

    cell = Compiler(str).compile("import os\nx = [1]\nx", 0, True)
    assert cell.last is not None  # the value of the last expression
    _encode([eval(cell.last, {"x": {"y": list(range(100))}})])
    try:
        snapshot.prepare()
    except OSError:
        # There is no shared object for this processor.
        pass
    try:
        eval("1/0")
    except ZeroDivisionError as error:
        tracebacks.describe(error)


def _encode(value: Any) -> None:
    from . import display

    bundle = display.bundle_of(value)
    if bundle is not None:
        display.encode_bundle(bundle)


def _use_ipython() -> None:
    magics = sys.modules.get("belljar_kernel.magics")
    if magics is not None:
        magics.transform("%time x\n!true\nx?")


def _use_pandas() -> None:
    pandas = sys.modules.get("pandas")
    if pandas is None:
        return
    import io

    frame = pandas.read_csv(io.StringIO("name,day,value\na,2024-01-01,1\nb,2024-01-02,2.5\n"))
    frame["day"] = pandas.to_datetime(frame["day"])
    frame.groupby("name")["value"].sum().sort_values()
    frame.describe()
    frame.merge(frame, on="name")
    for value in (frame, frame["value"], frame.dtypes):
        _encode(value)


def _use_matplotlib() -> None:
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    from . import figures

    figure, axes = pyplot.subplots()
    axes.plot([1, 2], [3, 4], label="x")
    axes.bar([1, 2], [3, 4])
    axes.set_title("x")
    axes.legend()
    figures.png(figure)
    pyplot.close(figure)
    # Cached fonts have open files. A kernel closes all unknown descriptors, and matplotlib would then read glyphs
    # from another file with the same number.
    from matplotlib import font_manager

    font_manager._get_font.cache_clear()
