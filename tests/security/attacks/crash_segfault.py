"""Crashes the interpreter with a null pointer.

The kernel's death must be told as such, and take nothing else with it.
"""
# expect: crashed
import ctypes

ctypes.string_at(0)
