"""Pages of the documentation, and the code that is written on them.

Fenced `python` blocks of a page run in order, in one namespace; `sh` blocks run in between, in the same
directory. What a page says of the outcome is checked:

- a `text` block right after one that runs is what that prints, where `...` stands for anything;
- so is a comment behind a `print`: the words up to its first comma or colon, `print(6 * 7)  # 42, always`.

Comments that readers do not see say the rest:

- `<!-- not run: why -->` above a block that cannot run here;
- `<!-- file: name -->` above a block that is a file for those after it;
- `<!-- model: [...] -->` is what the model of the page says, in JSON: a string, or a tool's name and arguments.
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
_PRINTED = re.compile(r"^\s*print\(.*\)  +# ([^,:\n]+)", re.MULTILINE)


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
            printed = part.partition("\n")[2]
            where = f"{self.path.name}, line {block.line}"
            rest = iter(printed.splitlines())
            for expected in block.printed:
                assert any(expected == line.strip() for line in rest), f"{where}: no `{expected}` in:\n{printed}"
            if block.output is not None:
                pattern = ".*".join(re.escape(piece) for piece in block.output.strip().split("..."))
                assert re.fullmatch(pattern, printed.strip(), re.DOTALL), f"{where}: it printed\n{printed}"


_MARK = "\x1e"
_PROGRAM = """
import json, linecache, os, pathlib, subprocess, sys
page, steps = {page!r}, json.loads({steps})
space = {{"__name__": "__main__"}}
for step in steps:
    if step["file"]:
        path = pathlib.Path(step["file"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(step["code"])
        continue
    print("\\x1e" + str(step["line"]), flush=True)
    if step["language"] == "sh":
        subprocess.run(["sh", "-eu", "-c", step["code"]], check=True)
    else:
        # Lines are those of the page.
        code = "\\n" * (step["line"] - 1) + step["code"]
        linecache.cache[page] = (len(code), None, code.splitlines(True), page)
        exec(compile(code, page, "exec"), space)
    sys.stdout.flush()
"""


def main() -> None:
    """`python pages.py PAGE...` lists what runs."""
    for path in sys.argv[1:]:
        for block in Page.read(Path(path)).blocks:
            print(path, block.line, block.language, "runs" if block.runs else block.not_run or block.file or "-")


if __name__ == "__main__":
    main()
