"""A backend for deepagents: the shell and the files of an agent in a sandbox.

>>> from deepagents import create_deep_agent
>>> from belljar.deepagents import BelljarSandbox
>>> agent = create_deep_agent(model=..., backend=BelljarSandbox(per_thread=True))

Needs `pip install 'belljar[deepagents]'`; works with deepagents 0.6.12 and later. `deepagents-code` finds the provider
`belljar` by its entry point.
"""

from __future__ import annotations

try:
    import deepagents.backends.sandbox  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError("belljar.deepagents needs deepagents: pip install 'belljar[deepagents]'") from error

from belljar.deepagents.backend import BelljarSandbox
from belljar.deepagents.provider import BelljarProvider

__all__ = ["BelljarProvider", "BelljarSandbox"]
