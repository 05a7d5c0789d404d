"""Gives a kernel that starts from the memory of another process its own environment and random seeds."""

from __future__ import annotations

import os
import sys
import time

# Fewer bits than numpy's generator can use, but enough that they cannot be guessed.
_SEED_BYTES = 32


def adapt(environment: dict[str, str]) -> None:
    """Sets the kernel's own environment, and draws new random values."""
    # The preloaded process has cleared its own.
    os.environ.update(environment)
    time.tzset()
    _draw_new_seeds()


def _draw_new_seeds() -> None:
    random = sys.modules.get("random")
    if random is not None:
        random.seed()
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        # It distinguishes processes by their ids, which are the same in every sandbox.
        tempfile._name_sequence = None  # type: ignore[attr-defined]
    numpy = sys.modules.get("numpy")
    numpy_random = sys.modules.get("numpy.random")
    if numpy is not None and numpy_random is not None:
        numpy_random.seed(numpy.frombuffer(os.urandom(_SEED_BYTES), numpy.uint32))
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        # The key that authenticates multiprocessing connections, drawn when the module was imported.
        processes.current_process().authkey = os.urandom(32)
    ssl = sys.modules.get("ssl")
    if ssl is not None:
        ssl.RAND_add(os.urandom(32), 32.0)
