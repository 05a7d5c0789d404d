"""Measures the overhead of the Python package.

    python bench/python_client.py [--rounds 2000] [--sessions 100] [--json]

- an execution with `Client`, compared with the same request over `http.client` on an open connection (the minimum for
  HTTP in Python) and over a plain `httpx.Client`, in turns, so that all have the same noise;
- `import belljar`, compared with `import httpx`, in new interpreters;
- many sessions at the same time in one process, each created, used three times and stopped.

It starts its own server and removes everything at the end. BELLJAR_BINARY selects another program than the installed
one. Absolute times depend on the machine; compare the differences and the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

# The targets of the project, which every line below is measured against.
OVERHEAD_MS = 0.5
IMPORT_MS = 150.0
WARM_UP = 200
IMPORTS = 15


@dataclass
class Line:
    what: str
    p50_ms: float
    p99_ms: float | None
    beside: str
    ratio: float | None = None
    target: str | None = None
    met: bool | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--sessions", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    load = os.getloadavg()[0]
    with local_server() as path:
        lines = [*executions(path, asked.rounds), *imports(), many(path, asked.sessions)]
    if asked.json:
        print(json.dumps({"load": load, "lines": [asdict(line) for line in lines]}, indent=2))
    else:
        show(lines, load)
    return 0


@contextmanager
def local_server() -> Iterator[str]:
    """A local server in its own directory."""
    from belljar import local

    with tempfile.TemporaryDirectory(prefix="bj-", ignore_cleanup_errors=True) as scratch:
        # Uses the installed packages of sandboxes; everything else is in the temporary directory.
        home = str(local.manifest_path().parent.parent)
        os.environ.update(XDG_DATA_HOME=scratch, XDG_RUNTIME_DIR=scratch, BELLJAR_HOME=home)
        for name in ("BELLJAR_URL", "SANDBOX_API_URL", "BELLJAR_API_KEY"):
            os.environ.pop(name, None)
        try:
            yield local.ensure()
        finally:
            local.stop()


class Raw(http.client.HTTPConnection):
    """HTTP over a UNIX socket, and nothing else."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self._path)


def executions(path: str, rounds: int) -> list[Line]:
    import httpx

    from belljar import Client

    with Client(f"unix:{path}") as client, client.session() as session:
        raw = Raw(path)
        plain = httpx.Client(transport=httpx.HTTPTransport(uds=path), base_url="http://localhost")
        url = f"/v1/sessions/{session.id}/exec"
        headers = {"content-type": "application/json", "accept": "application/json"}

        def by_http() -> None:
            raw.request("POST", url, json.dumps({"language": "python", "code": "1"}), headers)
            assert json.loads(raw.getresponse().read())["status"] == "ok"

        def by_httpx() -> None:
            assert plain.post(url, json={"language": "python", "code": "1"}).json()["status"] == "ok"

        def by_client() -> None:
            assert session.run_code("1").ok

        turns = take_turns([by_http, by_httpx, by_client], rounds)
        http_ms, httpx_ms, client_ms = (wall for wall, _ in turns)
        http_cpu, _, client_cpu = (p(cpu, 50) for _, cpu in turns)
        plain.close()
        raw.close()
    base, over = p(http_ms, 50), p(client_ms, 50) - p(http_ms, 50)
    return [
        Line("exec over http.client, kept connection", base, p(http_ms, 99), ""),
        Line("exec over httpx.Client", p(httpx_ms, 50), p(httpx_ms, 99), "http.client", p(httpx_ms, 50) / base),
        Line("exec over belljar.Client", p(client_ms, 50), p(client_ms, 99), "http.client", p(client_ms, 50) / base),
        Line(
            "  what the client adds per exec", over, p(client_ms, 99) - p(http_ms, 99), "",
            target=f"<= {OVERHEAD_MS} ms", met=over <= OVERHEAD_MS,
        ),
        # What a busy machine tells less wrongly.
        Line("  of that, processor time", client_cpu - http_cpu, None, "http.client", client_cpu / http_cpu),
    ]  # fmt: skip


def take_turns(calls: list[Callable[[], None]], rounds: int) -> list[tuple[list[float], list[float]]]:
    """How long each call took, and how much of that this thread computed."""
    taken: list[tuple[list[float], list[float]]] = [([], []) for _ in calls]
    for number in range(WARM_UP + rounds):
        for call, (wall, cpu) in zip(calls, taken):
            began, computed = time.perf_counter(), time.thread_time()
            call()
            took, used = time.perf_counter() - began, time.thread_time() - computed
            if number >= WARM_UP:
                wall.append(took * 1000)
                cpu.append(used * 1000)
    return taken


def imports() -> list[Line]:
    ours, theirs = (
        [imported(module) for _ in range(IMPORTS)] for module in ("belljar", "httpx")
    )
    used = [imported("belljar", "; belljar.Client('unix:/nowhere')") for _ in range(IMPORTS)]
    ratio = p(ours, 50) / p(theirs, 50)
    return [
        Line("import httpx", p(theirs, 50), p(theirs, 99), ""),
        Line(
            "import belljar", p(ours, 50), p(ours, 99), "httpx", ratio,
            target=f"<= {IMPORT_MS:.0f} ms", met=p(ours, 50) <= IMPORT_MS,
        ),
        Line("import belljar; belljar.Client(...)", p(used, 50), p(used, 99), "httpx", p(used, 50) / p(theirs, 50)),
    ]  # fmt: skip


def imported(module: str, then: str = "") -> float:
    code = f"import time; t = time.perf_counter(); import {module}{then}; print((time.perf_counter() - t) * 1000)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def many(path: str, sessions: int) -> Line:
    from belljar import AsyncClient

    async def one(client: AsyncClient, number: int) -> float:
        began = time.perf_counter()
        async with client.session(limits={"memory": "96M", "pids": 32, "tmpfs": "8M"}) as session:
            await session.run_code(f"x = {number}")
            await session.run_code("x += 1")
            assert (await session.run_code("x")).text == str(number + 1)
        return (time.perf_counter() - began) * 1000

    async def all_of_them() -> list[float | BaseException]:
        async with AsyncClient(f"unix:{path}") as client:
            return await asyncio.gather(*(one(client, n) for n in range(sessions)), return_exceptions=True)

    gc.collect()
    began = time.perf_counter()
    ended = asyncio.run(all_of_them())
    took = time.perf_counter() - began
    failed = [error for error in ended if isinstance(error, BaseException)]
    times = [time for time in ended if not isinstance(time, BaseException)]
    what = f"{sessions} async sessions at once, each: made, 3 execs, stopped (all: {took:.1f} s)"
    seen = f"{len(failed)} failed" + (f", such as {failed[0]!r}" if failed else "")
    return Line(what, p(times, 50), p(times, 99), seen, target="no error", met=not failed)


def p(times: list[float], percent: int) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[percent - 1] if len(times) > 1 else times[0]


def show(lines: list[Line], load: float) -> None:
    width = max(len(line.what) for line in lines)
    print(f"{'':{width}}  {'p50':>10}  {'p99':>10}  beside")
    for line in lines:
        beside = f"{line.ratio:.2f} x {line.beside}" if line.ratio is not None else line.beside
        target = f"  {line.target}: {'yes' if line.met else 'NO'}" if line.target else ""
        p99 = "" if line.p99_ms is None else f"{line.p99_ms:.3f} ms"
        print(f"{line.what:{width}}  {line.p50_ms:>7.3f} ms  {p99:>10}  {beside}{target}")
    print(f"\nload of the machine before: {load:.1f}")


if __name__ == "__main__":
    sys.exit(main())
