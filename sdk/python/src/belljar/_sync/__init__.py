"""The synchronous half: `_io` is written by hand, everything else by `scripts/generate_sync.py`."""
