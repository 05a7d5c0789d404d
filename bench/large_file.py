"""Uploads and downloads a file that is larger than memory, and measures the server's memory.

    python3 bench/large_file.py target/release/belljar --gib 5 --storage BIND

Starts its own server in a temporary directory. Prints the speeds and the largest growth of the server's resident
memory; fails if that is more than --reach MiB.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import Any

PIECE = 1 << 20


def resident(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:")) * 1024


class Peak(threading.Thread):
    """The maximum resident memory of a process since this was started."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.before, self.over = pid, resident(pid), threading.Event()
        self.most = self.before
        self.start()

    def run(self) -> None:
        while not self.over.wait(0.05):
            self.most = max(self.most, resident(self.pid))

    def growth(self) -> int:
        self.over.set()
        self.join()
        return self.most - self.before


def pieces(size: int, digest: hashlib._Hash) -> Iterator[bytes]:
    block = bytearray(os.urandom(PIECE))
    for number in range(size // PIECE):
        block[:8] = number.to_bytes(8, "big")
        digest.update(block)
        yield bytes(block)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--gib", type=float, default=5)
    parser.add_argument("--storage", choices=["BIND", "TMPFS"], default="BIND")
    parser.add_argument("--reach", type=float, default=32, help="MiB that the server may grow by")
    parser.add_argument("--directory", help="where the server keeps its files; a temporary one if absent")
    args = parser.parse_args()
    size = int(args.gib * (1 << 30)) // PIECE * PIECE
    with tempfile.TemporaryDirectory(dir=args.directory) as directory:
        names = {
            "BELLJAR_STATE_DIR": "state",
            "BELLJAR_RUN_DIR": "run",
            "SESSIONS_ROOT": "sessions",
            "BLOBSTORE_DIR": "blobs",
        }
        environment = {**os.environ, **{name: f"{directory}/{place}" for name, place in names.items()}}
        server = subprocess.Popen(
            [args.binary, "serve", "--listen", "127.0.0.1:0", "--stop-sessions"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            return measure(server, args, size)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


def measure(server: subprocess.Popen[str], args: argparse.Namespace, size: int) -> int:
    assert server.stdout is not None  # it is a pipe
    for line in server.stdout:
        if found := re.search(r"http://([\d.]+):(\d+)", line):
            break
    else:
        sys.exit("the server did not start")
    threading.Thread(target=server.stdout.read, daemon=True).start()
    connection = http.client.HTTPConnection(found[1], int(found[2]), timeout=600)

    def ask(method: str, path: str, body: Any = None) -> Any:
        connection.request(method, path, json.dumps(body) if body else None, {"content-type": "application/json"})
        answer = connection.getresponse()
        said = json.loads(answer.read() or b"{}")
        if answer.status >= 300:
            sys.exit(f"{method} {path}: {said}")
        return said

    limits = {"tmpfs": size + (64 << 20), "memory": size * 2} if args.storage == "TMPFS" else {}
    session = ask("POST", "/v1/sessions", {"storage": args.storage, "limits": limits})["id"]
    path = f"/v1/sessions/{session}/files/large.bin"
    growths = []

    def report(what: str, began: float, peak: Peak) -> None:
        seconds = time.monotonic() - began
        growths.append(peak.growth() / (1 << 20))
        print(f"{what:8} {size / seconds / 1e6:7.0f} MB/s, the server grew by {growths[-1]:.1f} MiB", flush=True)

    # The first request of its kind finds buffers that were never used.
    connection.request("PUT", path, b"x" * (16 << 20))
    connection.getresponse().read()
    sent, peak, began = hashlib.sha256(), Peak(server.pid), time.monotonic()
    connection.request("PUT", path, pieces(size, sent), {"content-length": str(size)})
    answer = connection.getresponse()
    said = answer.read()
    if answer.status != 200 or json.loads(said)["size"] != size:
        sys.exit(f"upload: {answer.status} {said.decode()}")
    report("upload", began, peak)

    got, peak, began = hashlib.sha256(), Peak(server.pid), time.monotonic()
    connection.request("GET", path)
    answer = connection.getresponse()
    while piece := answer.read(PIECE):
        got.update(piece)
    report("download", began, peak)
    if got.digest() != sent.digest():
        sys.exit("what came back is something else")
    ask("DELETE", f"/v1/sessions/{session}")
    return 1 if max(growths) > args.reach else 0


if __name__ == "__main__":
    sys.exit(main())
