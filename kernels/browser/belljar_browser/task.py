"""Tasks in natural language. browser-use does them in its own process and environment, with the session's browser: it
finds the open pages, and its own pages stay open."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from belljar_browser.errors import Invalid, NoBrowserUse, PageTimeout, TaskFailed

if TYPE_CHECKING:
    from belljar_browser.actions import Request
    from belljar_browser.browser import Browser

# Environments with browser-use: of `belljar setup --browser`, or of an image.
PYTHONS = ["/opt/belljar/browser-use/bin/python", "/opt/browser-use/bin/python"]
MISSING = (
    "`belljar setup --browser` installs it for the image `host`; other images need `browser_use = true` in their spec"
)
MAIN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "task_main.py")
PORT_FILE = "/tmp/.belljar-browser/profile/DevToolsActivePort"
PLACE = "/tmp/.belljar-browser/browser-use"

DEFAULT_KEY = "OPENAI_API_KEY"
# Used instead of a key if the proxy adds it (docs/network.md).
NO_KEY = "added-on-the-way"
DEFAULT_STEPS = 25
MAX_STEPS = 200
MAX_ANSWER = 1 << 20
END_PATIENCE = 1.0

# Otherwise browser-use sends telemetry, downloads a browser and checks for updates.
QUIET = {
    "ANONYMIZED_TELEMETRY": "false",
    "BROWSER_USE_CLOUD_SYNC": "false",
    "BROWSER_USE_CONFIG_DIR": PLACE,
    "BROWSER_USE_DISABLE_EXTENSIONS": "1",
    "BROWSER_USE_LOGGING_LEVEL": "result",
    "BROWSER_USE_SETUP_LOGGING": "false",
    "BROWSER_USE_VERSION_CHECK": "false",
    "SKIP_LLM_API_KEY_VERIFICATION": "true",
}


def python() -> str | None:
    return next((path for path in PYTHONS if os.access(path, os.X_OK)), None)


def is_possible() -> bool:
    return python() is not None


def perform(
    browser: Browser, request: Request, task: str, model: str | None = None, base_url: str | None = None,
    key_from: str | None = None, max_steps: int = DEFAULT_STEPS, vision: bool = False,
) -> dict[str, Any]:
    interpreter = python()
    if interpreter is None:
        raise NoBrowserUse("there is no browser-use in this sandbox's image", MISSING)
    if not task.strip():
        raise Invalid("task: expected a description of the task")
    if not 1 <= max_steps <= MAX_STEPS:
        raise Invalid(f"max_steps: expected 1 to {MAX_STEPS}")
    if not model:
        raise Invalid("model: missing, and the server has no default (BELLJAR_BROWSER_MODEL)")
    if key_from is not None and key_from not in os.environ:
        raise Invalid(f"key_from: the session has no variable `{key_from}`", "set it in `env` of the session")
    browser.current(request.deadline)
    order = {
        "task": task,
        "model": model,
        "base_url": base_url,
        "max_steps": max_steps,
        "vision": vision,
        "cdp_url": _cdp_url(request.deadline),
    }
    env = {**os.environ, **QUIET, "HOME": PLACE}
    key = os.environ.get(key_from or DEFAULT_KEY, NO_KEY)
    env.pop("OPENAI_BASE_URL", None)
    env[DEFAULT_KEY] = key
    os.makedirs(PLACE, mode=0o700, exist_ok=True)
    try:
        return _run(browser, request, [interpreter, "-I", MAIN], env, order)
    finally:
        if browser.runs:
            # browser-use has changed the directory of downloads.
            browser.downloads.allow(browser.pipe)


def _cdp_url(deadline: float) -> str:
    """The debugging address of Chromium, for browser-use."""
    while True:
        try:
            with open(PORT_FILE) as file:
                port, path = file.read().split()
            # By name: the proxy may forward the address to another machine.
            return f"ws://localhost:{int(port)}{path}"
        except (OSError, ValueError):
            if time.monotonic() > deadline:
                raise PageTimeout("timed out waiting for the browser's port") from None
            time.sleep(0.01)


def _run(
    browser: Browser, request: Request, argv: list[str], env: dict[str, str], order: dict[str, Any]
) -> dict[str, Any]:
    answers, theirs = os.pipe2(os.O_CLOEXEC)
    child = subprocess.Popen(
        [*argv, str(theirs)], stdin=subprocess.PIPE, env=env, cwd="/session", start_new_session=True, pass_fds=[theirs]
    )
    os.close(theirs)
    try:
        assert child.stdin is not None
        child.stdin.write(json.dumps(order).encode())
        child.stdin.close()
        os.set_blocking(answers, False)
        received = _listen(browser, request, child, answers)
    except BrokenPipeError:
        received = b""
    finally:
        _end(child)
        os.close(answers)
    try:
        answer: dict[str, Any] = json.loads(received)
    except ValueError:
        raise TaskFailed(f"browser-use ended without an answer (exit status {child.returncode})") from None
    if error := answer.get("error"):
        raise TaskFailed(str(error)[:4000], str(answer.get("hint", "")))
    return answer


def _listen(browser: Browser, request: Request, child: subprocess.Popen[bytes], answers: int) -> bytes:
    """Waits for the answer of browser-use, and handles Chromium's events meanwhile."""
    received = b""
    while True:
        try:
            piece = os.read(answers, 1 << 16)
            if not piece:
                return received
            received += piece
            if len(received) > MAX_ANSWER:
                raise TaskFailed("the answer of browser-use is too large")
            continue
        except BlockingIOError:
            pass
        if time.monotonic() >= request.deadline:
            raise PageTimeout("the task was not done in time", "give it more time (`timeout`), or fewer steps")
        if child.poll() is not None:
            # A child process may keep the pipe open.
            with contextlib.suppress(BlockingIOError):
                received += os.read(answers, MAX_ANSWER)
            return received
        browser.pipe.settle(0.05)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends the process and its children."""
    for sign in (None, signal.SIGTERM, signal.SIGKILL):
        if sign is not None:
            try:
                os.killpg(child.pid, sign)
            except (ProcessLookupError, PermissionError):
                return
        try:
            # It may be exiting already.
            child.wait(END_PATIENCE)
            return
        except subprocess.TimeoutExpired:
            pass
