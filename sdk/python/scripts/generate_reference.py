"""Generates docs/reference/python.md from the package's docstrings.

    python scripts/generate_reference.py            writes the page
    python scripts/generate_reference.py --check    fails if it is not up to date

It reads the sources and imports nothing: so it needs no optional dependencies, and its output is the same with every
version of Python.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "belljar"
PAGE = ROOT.parent.parent / "docs" / "reference" / "python.md"

# Chapters: a title, a module, and which of its names to show, in this order; all public ones if none is given.
CHAPTERS: list[tuple[str, str, list[str]]] = [
    ("Without a client", "_run.py", ["run", "arun"]),
    ("Options", "_options.py", ["RunOptions", "SessionOptions", "ExecOptions", "LimitOptions"]),
    ("Client", "_sync/client.py", ["Client"]),
    ("Session", "_sync/session.py", ["Session"]),
    ("Stream", "_sync/stream.py", ["Stream"]),
    ("Files", "_sync/files.py", ["Files"]),
    ("Changes of files", "_sync/watch.py", ["Watch"]),
    ("Types of files", "_file_calls.py", ["FileInfo", "FileList", "FileChange", "Unpacked"]),
    ("Browser", "_sync/browser.py", ["Browser"]),
    ("Options of browser actions", "_options.py", ["TabOptions", "ElementOptions", "WaitOptions"]),
    (
        "Types of browsers",
        "_browser_calls.py",
        ["BrowserState", "BrowserTab", "BrowserDialog", "Screenshot", "Download", "TaskResult"],
    ),
    ("Artifacts", "_sync/artifacts.py", ["Artifacts"]),
    ("Datasets", "_sync/datasets.py", ["Datasets"]),
    ("Volumes", "_sync/volumes.py", ["Volumes"]),
    ("Results and other types of the server", "models.py", []),
    ("Events of a stream", "events.py", []),
    ("Errors", "errors.py", []),
    ("Settings of an agent's sandboxes", "config.py", ["Config"]),
    ("Sessions by your own keys", "manager.py", ["SessionManager"]),
    ("Configuration and results of a session manager", "_manager.py", ["ManagerConfig", "ExecResult"]),
    ("Tools for LangGraph: code", "langgraph/code.py", ["make_code_sandbox_tool"]),
    (
        "Tools for LangGraph: datasets",
        "langgraph/datasets.py",
        ["make_select_dataset_tool", "make_list_datasets_tool", "make_export_datasets_tool"],
    ),
    ("Toolkit for LangChain", "toolkit.py", ["BelljarToolkit"]),
    ("Shell middleware of LangChain", "shell_policy.py", ["BelljarExecutionPolicy"]),
    ("Backend for deepagents", "deepagents/backend.py", ["BelljarSandbox"]),
    ("Provider for deepagents-code", "deepagents/provider.py", ["BelljarProvider"]),
    ("KernelLite", "kernellite/__init__.py", []),
    ("Client of simple-sandbox", "compat/simple_sandbox.py", ["SandboxClient"]),
    ("The local server", "local.py", []),
]

# Classes whose methods are inherited from generated ones.
INHERITED = {
    "SessionManager": [("_sync/manager.py", "KeyedSessions")],
    "BelljarSandbox": [("deepagents/_state.py", "SandboxState"), ("deepagents/_sync/sandbox.py", "SandboxCalls")],
}

# Modules whose names are not in `belljar` itself.
NOT_FROM_THE_TOP = {"deepagents", "kernellite", "local", "shell_policy"}

_HEAD = """\
# The Python package

<!-- Generated from docstrings by sdk/python/scripts/generate_reference.py. -->

Import the names from `belljar`, unless a chapter names another module. `AsyncClient`, `AsyncSession`, `AsyncStream` and
the objects that they return are the same as `Client`, `Session` and `Stream`, with `await`, `async with` and
`async for`.
"""


def main() -> int:
    text = page()
    if "--check" in sys.argv:
        if not PAGE.exists() or PAGE.read_text() != text:
            print(f"not up to date; run `python scripts/generate_reference.py`: {PAGE}")
            return 1
        return 0
    PAGE.write_text(text)
    return 0


def page() -> str:
    chapters = [chapter(title, PACKAGE / path, names) for title, path, names in CHAPTERS]
    contents = "\n".join(f"- [{title}](#{_anchor(title)})" for title, _, _ in CHAPTERS)
    text = "\n".join([_HEAD, contents, *chapters])
    return re.sub(r"\n{3,}", "\n\n", text).rstrip() + "\n"


def chapter(title: str, path: Path, names: list[str]) -> str:
    module = _parsed(path)
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = {node.name: node for node in module.body if isinstance(node, kinds)}
    wanted = names or [name for name in _public(module) if name in found]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise SystemExit(f"{path} has no {', '.join(missing)}")
    parts = [f"\n## {title}\n"]
    home = path.relative_to(PACKAGE).with_suffix("").parts[0]
    if home in NOT_FROM_THE_TOP:
        parts.append(f"`from belljar.{home} import ...`\n")
    if not names:
        parts.append(_prose(ast.get_docstring(module) or ""))
    parts += [_described(found[name], level=3) for name in wanted]
    return "\n".join(parts)


def _parsed(path: Path) -> ast.Module:
    """The module. Comments `#:` before a field become its docstring-like attribute `comment`."""
    text = path.read_text()
    lines = text.splitlines()
    module = ast.parse(text)
    for node in ast.walk(module):
        if isinstance(node, ast.AnnAssign):
            above = node.lineno - 1
            comment: list[str] = []
            while above > 0 and (line := lines[above - 1].strip()).startswith("#:"):
                comment.insert(0, line.removeprefix("#:").strip())
                above -= 1
            COMMENTS[node] = " ".join(comment)
    return module


#: The comments of fields.
COMMENTS: dict[ast.AnnAssign, str] = {}


def _options(annotation: ast.expr | None) -> list[str]:
    """The names of options that a signature unpacks: `Unpack[RunOptions]`."""
    if not isinstance(annotation, ast.Subscript) or ast.unparse(annotation.value) != "Unpack":
        return []
    kind = ast.unparse(annotation.slice)
    for path in ("_options.py", "_manager.py"):
        classes = [node for node in _parsed(PACKAGE / path).body if isinstance(node, ast.ClassDef)]
        by_name = {node.name: node for node in classes}
        if kind in by_name:
            return _field_names(by_name[kind], by_name)
    raise SystemExit(f"{kind} is not defined")


def _field_names(node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> list[str]:
    names = [
        member.target.id
        for member in node.body
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name)
    ]
    for base in node.bases:
        if ast.unparse(base) in classes:
            names += _field_names(classes[ast.unparse(base)], classes)
    return names


def _public(module: ast.Module) -> list[str]:
    """The names in `__all__`, or all that do not begin with an underscore."""
    for node in module.body:
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == "__all__" for to in node.targets):
            return sorted(ast.literal_eval(node.value))
    named = [node.name for node in module.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
    return sorted(name for name in named if not name.startswith("_"))


def _described(node: ast.AST, level: int, owner: str = "") -> str:
    mark = "#" * level
    if isinstance(node, ast.ClassDef):
        hidden = ("_", "KeyedSessions", "AsyncKeyedSessions", "SandboxCalls", "AsyncSandboxCalls")
        bases = ", ".join(ast.unparse(base) for base in node.bases if not ast.unparse(base).startswith(hidden))
        parts = [f"{mark} {node.name}" + (f"({bases})" if bases else "") + "\n"]
        parts.append(_prose(ast.get_docstring(node) or ""))
        parts += _fields(node)
        parts += [_described(method, level + 1, node.name) for method in _methods(node)]
        for path, name in INHERITED.get(node.name, []):
            inherited = next(cls for cls in ast.walk(_parsed(PACKAGE / path)) if _is_class(cls, name))
            methods = [method for method in _methods(inherited) if method.name != "__init__"]
            parts += [_described(method, level + 1, node.name) for method in methods]
        return "\n".join(part for part in parts if part)
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    return f"{mark} `{_signature(node, owner)}`\n\n{_prose(ast.get_docstring(node) or '')}"


def _is_class(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.ClassDef) and node.name == name


def _methods(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    assert isinstance(node, ast.ClassDef)
    for member in node.body:
        if not isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        is_overload = any(ast.unparse(decorator) == "overload" for decorator in member.decorator_list)
        if member.name == "__init__":
            # Objects that a client creates are not created by users.
            is_shown = [argument.arg for argument in member.args.args[1:2]] != ["client"]
        else:
            is_shown = not member.name.startswith("_") and bool(ast.get_docstring(member) or _is_property(member))
        if is_shown and not is_overload:
            yield member


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(decorator) == "property" for decorator in node.decorator_list)


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str) -> str:
    if _is_property(node):
        return f"{owner}.{node.name}: {_type(node.returns)}"
    names = []
    positional = [*node.args.posonlyargs, *node.args.args]
    defaults = [None] * (len(positional) - len(node.args.defaults)) + list(node.args.defaults)
    for argument, default in zip(positional, defaults):
        if argument.arg not in ("self", "cls"):
            names.append(_argument(argument, default))
    if node.args.vararg is not None:
        names.append(f"*{node.args.vararg.arg}")
    elif node.args.kwonlyargs:
        names.append("*")
    names += [_argument(argument, default) for argument, default in zip(node.args.kwonlyargs, node.args.kw_defaults)]
    if node.args.kwarg is not None:
        options = _options(node.args.kwarg.annotation)
        if options and node.args.vararg is None and not node.args.kwonlyargs:
            names.append("*")
        names += [f"{name}=..." for name in options] or [f"**{node.args.kwarg.arg}"]
    called = f"{owner}." * bool(owner) + node.name
    if node.name == "__init__":
        return f"{owner}({', '.join(names)})"
    awaited = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
    return f"{awaited}{called}({', '.join(names)}) -> {_type(node.returns)}"


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    if default is None:
        return argument.arg
    # The name of a private constant does not help readers.
    return f"{argument.arg}={ast.unparse(default) if isinstance(default, ast.Constant) else '...'}"


def _type(node: ast.expr | None) -> str:
    return re.sub(r"\b_?(?:io|sync|aio|local)\.", "", ast.unparse(node)) if node is not None else "None"


def _fields(node: ast.ClassDef) -> list[str]:
    """Attributes that a class declares, one line each."""
    lines = []
    for member in node.body:
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name):
            name = member.target.id
            if not name.startswith("_"):
                comment = COMMENTS.get(member, "")
                lines.append(f"- `{name}: {ast.unparse(member.annotation)}`" + (f": {comment}" if comment else ""))
    return ["\n".join(lines) + "\n"] if lines else []


def _prose(docstring: str) -> str:
    """A docstring as Markdown: examples become blocks of code."""
    lines: list[str] = []
    in_example = False
    for line in inspect.cleandoc(docstring).splitlines():
        if line.startswith(">>> ") and not in_example:
            in_example = True
            lines.append("```pycon")
        elif in_example and not line.strip():
            in_example = False
            lines.append("```")
        lines.append(line)
    if in_example:
        lines.append("```")
    return "\n".join(lines) + "\n" if lines else ""


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main())
