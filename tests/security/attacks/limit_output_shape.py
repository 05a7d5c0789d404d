"""Prints what breaks readers: no newline, broken UTF-8, NUL, terminal commands, frames of a protocol.

A reader that panics, or a terminal that obeys, is an attack on the person watching. Stopped by treating
output as bytes of unknown shape.
"""
import os
import struct
import sys

sys.stdout.flush()
os.write(1, bytes(range(256)) * 16)
os.write(1, b"\xff\xfe\xed\xa0\x80" * 100)
os.write(1, b"\x1b]0;title\x07\x1b[2J\x1b]52;c;cHduZWQ=\x07\x1b[6n")
os.write(1, struct.pack("<II", 13, 0) + b'{"op":"done"}')
os.write(1, b"data: {\"status\":\"ok\"}\n\n")
os.write(2, b"y" * (1 << 20))
os.write(1, b"z" * (1 << 19) + b"\n")
print("CONTAINED: odd bytes were printed")
