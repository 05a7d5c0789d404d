"""Leaves by the back door with status 0, skipping the interpreter's own farewell.

A run whose kernel vanished must not count as a success that printed nothing. Judged by the harness: the
run ends at once and the host lives.
"""
# expect: crashed
import os

os._exit(0)
