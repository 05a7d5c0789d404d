"""The asynchronous client. `scripts/generate_sync.py` generates the synchronous one, `_sync`, from it.

Only `_io` is written by hand for both: it holds all that differs.
"""
