"""Many agents at the same time in one program, each with its own sandbox.

    pip install 'belljar[deepagents]'
    python examples/parallel_agents.py [HOW MANY]

Each estimates pi with its own random numbers and writes the result to `/session/pi.txt`, which is a different file in
every sandbox. You need neither a running server nor a model's API key: see agents.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import secrets
import statistics
import sys
import time

from agents import call, model
from deepagents import create_deep_agent

from belljar import AsyncClient
from belljar.deepagents import BelljarSandbox

QUESTION = "Estimate pi with a million random points, seed {seed}. Keep the result in /session/pi.txt, a number only."

DARTS = """
python3 - <<'END' | tee /session/pi.txt
import random
random.seed({seed})
print(sum(random.random() ** 2 + random.random() ** 2 < 1 for _ in range(1_000_000)) / 250_000)
END
"""


async def main(how_many: int) -> None:
    backend = BelljarSandbox("parallel", per_thread=True, limits={"memory": "128M"})
    threads = [f"{secrets.token_hex(4)}-{seed}" for seed in range(how_many)]
    began = time.monotonic()
    try:
        await asyncio.gather(*(ask(backend, thread, seed) for seed, thread in enumerate(threads)))
        took = time.monotonic() - began
        estimates = await read_results(threads)
        for seed, estimate in enumerate(estimates):
            print(f"agent {seed}: {estimate}")
        print(f"together: {statistics.mean(estimates):.4f}, by {how_many} agents in {took:.1f} s")
    finally:
        await asyncio.gather(*map(backend.astop_thread, threads))
        await backend.aclose()


async def ask(backend: BelljarSandbox, thread: str, seed: int) -> None:
    # Print only once whether the model is a real one.
    with contextlib.redirect_stdout(io.StringIO()) if seed else contextlib.nullcontext():
        chosen = model(call("execute", command=DARTS.format(seed=seed)), "It is in /session/pi.txt.")
    agent = create_deep_agent(model=chosen, backend=backend)
    question = {"messages": [("user", QUESTION.format(seed=seed))]}
    await agent.ainvoke(question, {"configurable": {"thread_id": thread}})


async def read_results(threads: list[str]) -> list[float]:
    """The results in the sandboxes, read without the agents."""
    async with AsyncClient() as client:
        sessions = await asyncio.gather(*(client.sessions(key=f"parallel::{thread}") for thread in threads))
        read = await asyncio.gather(*(found[0].run_command("cat /session/pi.txt") for found in sessions))
        return [float(result.stdout) for result in read]


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 8))
