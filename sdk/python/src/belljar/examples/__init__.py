"""Whole programs to begin with: `python -m belljar.examples`."""
