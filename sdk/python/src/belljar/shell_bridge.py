"""`python -m belljar.shell_bridge SESSION`: a shell in a session, at the end of our own pipes.

```text
  stdin ──▶ POST .../stdin ──▶ ┌───────────────────┐
                               │ shell in a session│
  stdout, stderr ◀── events ── └───────────────────┘
```

Its exit status is ours. When we end, however that happens, so does the shell: a process of its own
waits for our end, which even SIGKILL cannot hide from it, and interrupts the shell.

`BELLJAR_SHELL` may hold JSON with a `command` (a list; `/bin/bash` unless told) and an `env`.
"""

from __future__ import annotations

import codecs
import json
import os
import signal
import sys
import threading
from typing import BinaryIO

from belljar._calls import new_exec_id
from belljar._sync.client import Client
from belljar._sync.session import Session
from belljar._sync.stream import Stream
from belljar.errors import BelljarError, Refused
from belljar.events import Done, Stderr, Stdout
from belljar.models import Result

# The longest a shell lives. No agent needs it for longer, and one that is forgotten ends.
_LIFE = 7 * 24 * 3600.0
# The most that a server keeps, and passes on, of what a shell says in all its life.
_MAX_OUTPUT = "64M"
_CHUNK = 64 << 10
# As shells say it: the command could not be run.
_CANNOT_RUN = 126


def main() -> int:
    if len(sys.argv) != 2:
        print(f"usage: python -m {__spec__.name} SESSION", file=sys.stderr)
        return 2
    asked = json.loads(os.environ.pop("BELLJAR_SHELL", "{}"))
    exec_id = new_exec_id()
    _leave_a_guard(sys.argv[1], exec_id)
    # Whoever asks us to end is obeyed, and the guard sees to the rest.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        with Client() as client:
            session = client.get_session(sys.argv[1])
            stream = session.stream(
                command=asked.get("command") or ["/bin/bash"],
                env=asked.get("env") or None,
                timeout=_LIFE,
                stdin=True,
                max_output=_MAX_OUTPUT,
                exec_id=exec_id,
            )
            return _bridge(session, stream, exec_id)
    except BelljarError as error:
        print(f"belljar: {error}", file=sys.stderr, flush=True)
        return _CANNOT_RUN


def _bridge(session: Session, stream: Stream, exec_id: str) -> int:
    has_begun = threading.Event()
    feeder = threading.Thread(target=_feed, args=(session, exec_id, has_begun), daemon=True)
    feeder.start()
    # The server must have heard of an execution before it can be fed.
    stream.accepted()
    has_begun.set()
    for event in stream:
        if isinstance(event, Stdout):
            _say(sys.stdout.buffer, event.text)
        elif isinstance(event, Stderr):
            _say(sys.stderr.buffer, event.text)
        elif isinstance(event, Done):
            return _status(event.result)
    return _CANNOT_RUN


def _feed(session: Session, exec_id: str, has_begun: threading.Event) -> None:
    """Passes on what comes, and that nothing comes any more."""
    has_begun.wait()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    try:
        while chunk := os.read(0, _CHUNK):
            text = decoder.decode(chunk)
            if text:
                session.stdin(exec_id, text)
        session.stdin(exec_id, decoder.decode(b"", final=True), close=True)
    except Refused:
        # The shell has ended, or does not listen; its last event says how.
        pass
    except BelljarError as error:
        # Whoever fed us must not wait for answers to what never arrived.
        _say(sys.stderr.buffer, f"belljar: input was lost: {error}\n")
        os._exit(_CANNOT_RUN)


def _say(to: BinaryIO, text: str) -> None:
    try:
        to.write(text.encode())
        to.flush()
    except BrokenPipeError:
        # Nobody listens: as good as being asked to end.
        os._exit(128 + signal.SIGPIPE)


def _status(result: Result) -> int:
    if result.dropped:
        lost = result.dropped.stdout_bytes + result.dropped.stderr_bytes
        _say(sys.stderr.buffer, f"belljar: {lost} bytes of output were not kept\n")
    if result.status in ("timeout", "oom", "crashed") or result.reason:
        _say(sys.stderr.buffer, f"belljar: the shell ended: {result.reason or result.status}\n")
    return result.exit_code & 0xFF


def _leave_a_guard(session_id: str, exec_id: str) -> None:
    """Forks a process that outlives us by as long as it takes to interrupt the shell."""
    reading, writing = os.pipe()
    if os.fork() != 0:
        os.close(reading)
        # `writing` stays open, and nobody inherits it, until we end.
        return
    status = 1
    try:
        # Not of our group: who kills that must not kill this.
        os.setsid()
        os.close(writing)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            # Whoever reads our pipes waits for the end of all who hold them.
            os.dup2(nothing, descriptor)
        os.read(reading, 1)
        with Client() as client:
            client.get_session(session_id).interrupt(exec_id)
        status = 0
    except Exception:
        # There is nobody to tell: the shell has ended, or the server has.
        pass
    finally:
        os._exit(status)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # Not through the interpreter's end, which would wait for whoever reads our standard input.
    os._exit(status)
