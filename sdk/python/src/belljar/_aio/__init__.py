"""The asynchronous half, written by hand. `scripts/generate_sync.py` makes `_sync` of it.

Only `_io` is written twice: what waiting, files and pools are differs, and nothing else does.
"""
