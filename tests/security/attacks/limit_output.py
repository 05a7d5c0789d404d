"""Prints two gigabytes.

Unbounded, output fills the server's memory or disk. Stopped by a bound beyond which output is dropped and
counted. The last line may be dropped too, so the end of the run and the length of what came out are judged.
"""
# belljar: --timeout 120
# expect: done
# output: 1048576
line = "x" * 999_999
for _ in range(2000):
    print(line)
print("CONTAINED: two gigabytes were taken, and we are still here")
