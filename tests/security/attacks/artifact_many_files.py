"""Leaves twenty thousand artifacts.

A row, a hash and an fsync for each would keep the server busy for long. Stopped by a bound on their number,
whose overflow is said in the result.
"""
# belljar: --timeout 120
# expect: artifacts
COUNT = 20_000
for number in range(COUNT):
    with open(f"/work/artifacts/{number:05}.txt", "w") as file:
        file.write(str(number))
print(f"CONTAINED: {COUNT} files were left")
