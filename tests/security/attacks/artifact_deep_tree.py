"""Leaves a tree a thousand folders deep, whose paths are longer than any path may be.

Recursion overflows a stack, and full paths fail with ENAMETOOLONG. Stopped by walking by descriptors with
a bound on depth.
"""
# expect: artifacts
import os

DEPTH = 1000
here = os.getcwd()
os.chdir("/work/artifacts")
for _ in range(DEPTH):
    os.mkdir("deep-folder-name")
    os.chdir("deep-folder-name")
with open("bottom.txt", "w") as file:
    file.write("the bottom")
os.chdir(here)
print(f"CONTAINED: a file lies {DEPTH} folders down")
