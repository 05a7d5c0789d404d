"""Does a task with browser-use, in the environment that has it. The task is read from standard input, the answer is
written to the descriptor in the first argument, and every step is printed to standard output.

    /opt/belljar/browser-use/bin/python -I task_main.py FD
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

MAX_LINE = 2000


def say(line: str) -> None:
    print(line[:MAX_LINE], flush=True)


def short(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)[:300]


async def on_step(state: Any, output: Any, number: int) -> None:
    goal = getattr(output, "next_goal", None) or ""
    say(f"step {number}: {goal}".rstrip(": "))
    say(f"  at {getattr(state, 'url', '')}")
    for action in getattr(output, "action", []):
        for name, arguments in action.model_dump(exclude_none=True).items():
            say(f"  {name} {short(arguments)}")


async def perform(order: dict[str, Any]) -> dict[str, Any]:
    from browser_use import Agent, Browser, ChatOpenAI

    llm = ChatOpenAI(
        model=order["model"],
        base_url=order["base_url"],
        # Models of other providers refuse these unknown fields.
        frequency_penalty=None,
        add_schema_to_system_prompt=True,
        max_retries=2,
    )
    browser = Browser(
        cdp_url=order["cdp_url"],
        is_local=True,
        keep_alive=True,
        downloads_path="/session/downloads",
        enable_default_extensions=False,
        highlight_elements=False,
    )
    agent = Agent(
        task=order["task"],
        llm=llm,
        browser=browser,
        use_vision=order["vision"],
        use_judge=False,
        calculate_cost=False,
        generate_gif=False,
        enable_signal_handler=False,
        register_new_step_callback=on_step,
        file_system_path="/tmp/.belljar-browser/browser-use",
    )
    history = await agent.run(max_steps=order["max_steps"])
    errors = [str(error) for error in history.errors() if error]
    for error in errors:
        say(f"error: {error}")
    steps = history.number_of_steps()
    if not history.is_done():
        last = errors[-1] if errors else "the limit of steps was reached"
        return {"error": f"the task was not done within {steps} steps: {last}", "hint": "see the log of steps"}
    return {
        "answer": history.final_result() or "",
        "success": history.is_successful() is not False,
        "steps": steps,
        "urls": [url for url in history.urls() if url][-50:],
        "errors": [error[:MAX_LINE] for error in errors[-10:]],
    }


async def answer(order: dict[str, Any], answers: int) -> None:
    try:
        result = await perform(order)
    except Exception as error:
        result = {"error": f"{type(error).__name__}: {error}"}
    os.write(answers, json.dumps(result).encode())
    sys.stdout.flush()
    # Without the clean-up of libraries, which would wait for threads and log errors about the browser.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(answer(json.load(sys.stdin), int(sys.argv[1])))
