"""Answers of the tools for the browser."""

from __future__ import annotations

from typing import Any

from belljar._browser_calls import Screenshot, TaskResult
from belljar.langgraph._images import MAX_IMAGE_BYTES, with_images
from belljar.langgraph._render import clip, list_artifacts, note, section
from belljar.langgraph._tool import Answer, origin
from belljar.manager import Opened


def task_done(opened: Opened[Any], done: TaskResult, max_chars: int) -> Answer:
    less = max(200, max_chars // 4)
    answer = clip(done.answer, max_chars) or "(The task was done; there is no answer.)"
    parts = [note(opened.notice), note(done.state.note), answer]
    if not done.success:
        parts.append("The browser agent reports that it did not succeed.")
    files = "\n".join(f"- {file.path}" for file in done.state.downloads)
    parts += [section("downloads", files), section("steps", clip(done.log, less)), list_artifacts(done.state.artifacts)]
    artifact = {"status": "ok", **done.model_dump(mode="json"), **origin(opened)}
    return "\n".join(part for part in parts if part), artifact


def screenshot_taken(opened: Opened[Any], taken: Screenshot, images: bool) -> Answer:
    parts = [note(opened.notice), f"A screenshot of {taken.width} x {taken.height} pixels."]
    if taken.cut_off:
        parts.append(f"The page is {taken.cut_off} pixels longer.")
    parts.append(list_artifacts([taken.artifact]))
    shown = [("image/png", taken.png)] if images and len(taken.png) <= MAX_IMAGE_BYTES else []
    artifact = {"status": "ok", "artifacts": [taken.artifact.model_dump(mode="json")], **origin(opened)}
    return with_images("\n".join(part for part in parts if part), shown), artifact
