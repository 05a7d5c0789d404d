"""What a kernel that begins with the memory of another process must not share with it: environment and randomness."""

from __future__ import annotations

import os
import sys
import time

# As many bits of seed as a generator of numpy's can tell apart are too many to fetch; this many nobody can guess.
_SEED_BYTES = 32


def adapt(environment: dict[str, str]) -> None:
    """Takes the kernel's own environment, and draws everything anew that was drawn before."""
    # The one that we were made from had emptied its own.
    os.environ.update(environment)
    time.tzset()
    _draw_anew()


def _draw_anew() -> None:
    random = sys.modules.get("random")
    if random is not None:
        random.seed()
    tempfile = sys.modules.get("tempfile")
    if tempfile is not None:
        # It tells processes apart by their numbers, which are the same in every sandbox.
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
