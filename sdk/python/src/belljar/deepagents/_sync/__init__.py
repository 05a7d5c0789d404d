# Generated from ../_aio/__init__.py by scripts/generate_sync.py; change that file.
"""The calls of `BelljarSandbox`."""
