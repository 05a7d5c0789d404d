"""An interpreter with the packages of an image loaded, whose memory is the start of kernels in other sandboxes.

    host                                          preloaded, in a sandbox of its own
     | preload {layer, modules} + a pipe --------->| imports, warms up, writes its memory into the pipe
     |<- {bytes, warm} ........................... | and exits
     |
     | the files, {env, cwd} --------------------->| in another sandbox: a loader becomes the saved process,
     |                                             | which goes on here as a kernel: sends hello to its guest

The contents of an image are not trusted, so this process has the rights of a sandbox, sees no session, and ends before
the first kernel starts from its memory. It stays single-threaded, because only the main thread is saved.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import threading
from types import ModuleType

from . import kernel, renewal, seal, snapshot, warmup
from .wire import Channel

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from typing import Any, NoReturn


def run_preloaded(fd: int) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    main = kernel.new_main_module()
    kernel.prepare_imports(main, font_cache=None)
    channel = Channel(fd)
    channel.send(kernel.hello())
    while (frame := channel.receive()) is not None:
        if frame[0].get("op") == "line":
            line = channel.take_descriptor({"op": "line"})
            if line is not None:
                _talk(socket.socket(fileno=line), main)
    os._exit(0)


def _talk(line: socket.socket, main: ModuleType) -> None:
    packet, fds, _flags, _ = socket.recv_fds(
        line, snapshot.MAX_PACKET_BYTES, snapshot.MAX_PACKET_FDS, socket.MSG_CMSG_CLOEXEC
    )
    try:
        request = json.loads(packet)
        (stream,) = fds
        answer = _preload(request["modules"])
        written = snapshot.write_common(request["layer"], stream)
    except snapshot.Refused as refused:
        answer, written = {"refused": refused.reasons}, 0
    except Exception as error:
        answer, written = {"refused": [f"{type(error).__name__}: {error}"]}, 0
    if written is None:
        _be_kernel(main)
    snapshot.say(line, {**answer, "bytes": written})


def _preload(modules: list[str]) -> dict[str, Any]:
    warm = warmup.warm_up(modules)
    # Exempts all existing objects from collections: a collection would write to the header of every object, and so
    # copy every page.
    gc.collect()
    gc.freeze()
    return {"warm": warm}


def _be_kernel(main: ModuleType) -> NoReturn:
    """The first steps of a kernel that was loaded from this process's memory."""
    channel = None
    try:
        line = socket.socket(fileno=snapshot.LINE_AT)
        channel = Channel(snapshot.CONTROL_AT)
        seal.close_other_fds([channel.fileno(), line.fileno()])
        with line:
            order = json.loads(line.recv(snapshot.MAX_PACKET_BYTES))
        # The loader's name is on the process.
        seal.set_process_name(os.path.basename(sys.executable))
        threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
        os.chdir(order["cwd"])
        renewal.adapt(order["env"])
        ready = kernel.Kernel(channel, main)
    except BaseException as problem:
        if channel is not None:
            kernel.send_fatal(channel, problem)
        os._exit(kernel.EXIT_FATAL)
    kernel.serve_to_the_end(ready)
