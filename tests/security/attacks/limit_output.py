"""Prints two gigabytes.

Unbounded, output fills the server's memory or disk. Stopped by a bound beyond which output is dropped and
counted. The last line may be dropped too, so only the end of the run and the host's health are judged.
"""
# belljar: --timeout 120
# expect: any
line = "x" * 999_999
for _ in range(2000):
    print(line)
print("CONTAINED: two gigabytes were taken, and we are still here")
