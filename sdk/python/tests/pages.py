"""Pages of the documentation, and the code that is written on them.

Fenced `python` blocks of a page run in order, in one namespace; `sh` blocks run in between, in the same
directory. What a page says of the outcome is checked:

- a `text` block right after one that runs is what that prints, where `...` stands for anything;
- so is a comment behind a `print`, or its beginning up to a comma or colon: `print(6 * 7)  # 42, always`.

Comments that readers do not see say the rest:

- `<!-- not run: why -->` above a block that cannot run here;
- `<!-- file: name -->` above a block that is a file for those after it;
- `<!-- model: [...] -->` is what the model of the page says, in JSON: a string, or a tool's name and arguments,
  where `@name` stands for a file of the page.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_COMMENT = re.compile(r"<!-- (not run|file|model): (.*?) -->", re.DOTALL)
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PRINTED = re.compile(r"^\s*print\(.*\)  +# (.+)$", re.MULTILINE)


@dataclass
class Block:
    language: str
    code: str
    line: int
    #: The name of the file that it is, if it is one.
    file: str | None = None
    #: Why it does not run, if it does not.
    not_run: str | None = None
    #: What it prints, as far as the page says so.
    output: str | None = None

    @property
    def runs(self) -> bool:
        return self.language in ("python", "sh") and self.not_run is None and self.file is None

    @property
    def printed(self) -> list[str]:
        return [said.strip() for said in _PRINTED.findall(self.code)]

    def check(self, where: str, printed: str) -> None:
        rest = iter(line.strip() for line in printed.splitlines())
        for expected in self.printed:
            assert any(_is(line, expected) for line in rest), f"{where}: no `{expected}` in\n{printed}"
        if self.output is not None:
            pattern = ".*".join(re.escape(piece) for piece in self.output.strip().split("..."))
            assert re.fullmatch(pattern, printed.strip(), re.DOTALL), f"{where}: it printed\n{printed}"


@dataclass
class Page:
    path: Path
    blocks: list[Block] = field(default_factory=list)
    #: What the model says on this page.
    script: list[Any] = field(default_factory=list)

    @staticmethod
    def read(path: Path) -> Page:
        page = Page(path)
        text = path.read_text()
        end = 0
        for found in _FENCE.finditer(text):
            between, end = text[end : found.start()], found.end()
            line = text.count("\n", 0, found.start()) + 2
            block = Block(found[1], found[2], line)
            # A comment is about the block right below it.
            comments = [(comment[1], comment[2], between[comment.end() :]) for comment in _COMMENT.finditer(between)]
            for kind, said, after in comments:
                if kind == "model":
                    page.script += json.loads(said)
                elif not after.strip():
                    setattr(block, kind.replace(" ", "_"), said.strip())
            is_next = page.blocks and not _COMMENT.sub("", between).strip()
            if block.language == "text" and is_next and page.blocks[-1].runs:
                page.blocks[-1].output = block.code
            else:
                page.blocks.append(block)
        files = {f"@{block.file}": block.code for block in page.blocks if block.file is not None}
        for said in page.script:
            if not isinstance(said, str):
                said[1] = {name: files.get(str(value), value) for name, value in said[1].items()}
        return page

    def program(self) -> str:
        """A Python program that does all of it, and says which block it is at."""
        steps = [
            {"language": block.language, "code": block.code, "line": block.line, "file": block.file}
            for block in self.blocks
            if block.runs or block.file is not None
        ]
        return _PROGRAM.format(page=str(self.path), steps=json.dumps(json.dumps(steps)))

    def check(self, said: str) -> None:
        """Compares what the program said with what the page says it does."""
        parts = said.split(_MARK)[1:]
        runs = [block for block in self.blocks if block.runs]
        assert len(parts) == len(runs), f"{self.path.name} did not come to its end:\n{said}"
        for block, part in zip(runs, parts):
            block.check(f"{self.path.name}, line {block.line}", part.partition("\n")[2])


def _is(line: str, expected: str) -> bool:
    return line == expected or (bool(line) and expected.startswith((f"{line},", f"{line}:")))


_MARK = "\x1e"
_PROGRAM = """
import json, linecache, os, pathlib, signal, subprocess, sys, time
page, steps = {page!r}, json.loads({steps})
space, shells = {{"__name__": "__main__"}}, []
# What the shell starts is not to get in the way of anything that runs here already.
shell_env = {{**os.environ, **json.loads(os.environ.pop("SHELL_ENV", "{{}}"))}}


def is_there(group):
    try:
        os.killpg(group, signal.SIGTERM)
    except ProcessLookupError:
        return False
    return True


try:
    for step in steps:
        if step["file"]:
            path = pathlib.Path(step["file"])
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(step["code"])
            continue
        print("\\x1e" + str(step["line"]), flush=True)
        if step["language"] == "sh":
            # Servers that it leaves behind write to the same place, which they must not hold open.
            log = open("shell.log", "a")
            shell = subprocess.Popen(
                ["sh", "-eu", "-c", step["code"]], env=shell_env, start_new_session=True, stdin=subprocess.DEVNULL,
                stdout=open("out.log", "w"), stderr=log,
            )
            shells.append(shell.pid)
            status = shell.wait(60)
            print(open("out.log").read(), flush=True)
            assert status == 0, f"line {{step['line']}} of {{page}}: status {{status}}: {{open('shell.log').read()}}"
        else:
            # Lines are those of the page.
            code = "\\n" * (step["line"] - 1) + step["code"]
            linecache.cache[page] = (len(code), None, code.splitlines(True), page)
            exec(compile(code, page, "exec"), space)
        sys.stdout.flush()
finally:
    deadline = time.monotonic() + 20
    while any([is_there(group) for group in shells]) and time.monotonic() < deadline:
        time.sleep(0.05)
"""


def main() -> None:
    """`python pages.py PAGE...` lists what runs."""
    for path in sys.argv[1:]:
        for block in Page.read(Path(path)).blocks:
            print(path, block.line, block.language, "runs" if block.runs else block.not_run or block.file or "-")


if __name__ == "__main__":
    main()
