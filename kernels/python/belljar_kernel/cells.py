"""Compiles the source of a cell.

A cell is compiled in two parts, so that the value of its last expression can be published: the statements before it,
and the expression. Either part may contain a top-level `await`, and then evaluates to a coroutine.

Plain Python never uses IPython. Only source that Python cannot parse, and that seems to contain `%magic`, `!command` or
`help?`, is passed to IPython's transformer and compiled again.
"""

from __future__ import annotations
import __future__

import linecache
import re
from _ast import (
    Expr,
    Expression,
    Module,
    PyCF_ALLOW_TOP_LEVEL_AWAIT,
    PyCF_ONLY_AST,
)
from types import CodeType

TYPE_CHECKING = False  # see __init__.py
if TYPE_CHECKING:
    from collections.abc import Callable

# Tracebacks and inspect.getsource() can show the source of this many cells; older ones are forgotten.
KEPT_CELL_SOURCES = 1000

CO_COROUTINE = 0x80  # inspect.CO_COROUTINE, without importing inspect

_FUTURE_FLAGS = 0
for _name in __future__.all_feature_names:
    _FUTURE_FLAGS |= getattr(__future__, _name).compiler_flag

# Lines that only IPython understands: %magic, %%cell, !command, x = %magic, x = !command, ?help, help?
_IPYTHON_LINE = re.compile(r"^\s*[%!?]|^[^#\n]*=\s*[%!]|\?\s*$", re.MULTILINE)


class Cell:
    """The code of one cell. `body` are its statements, `last` the expression whose value is its result."""

    __slots__ = ("body", "last")

    def __init__(self, body: CodeType | None, last: CodeType | None) -> None:
        self.body = body
        self.last = last

    @property
    def awaits(self) -> bool:
        return any(code is not None and code.co_flags & CO_COROUTINE for code in (self.body, self.last))


class Compiler:
    """Compiles cells one after another. `from __future__` imports stay in force for the cells that follow."""

    def __init__(self, transform: Callable[[str], str]) -> None:
        self._flags = PyCF_ALLOW_TOP_LEVEL_AWAIT
        self._transform = transform

    def compile(self, source: str, number: int, echo: bool, filename: str | None = None) -> Cell:
        """Compiles the cell; with `echo`, its last expression separately. Only a script has a file name."""
        is_script = filename is not None
        filename = filename or f"<cell {number}>"
        if "\r" in source:
            # Python's tokenizer counts lines this way, and linecache has to agree with it.
            source = source.replace("\r\n", "\n").replace("\r", "\n")
        # Before compiling, so that warnings and errors of the compiler can quote the line.
        _remember(filename, source, number)
        try:
            tree = self._parse(source, filename)
        except SyntaxError as error:
            dedented = source if is_script or not isinstance(error, IndentationError) else _dedent(source)
            if dedented != source:
                _remember(filename, dedented, number)
                try:
                    return self._compile_tree(self._parse(dedented, filename), dedented, filename, echo)
                except IndentationError:
                    # The source has more such errors: report the first, as Python does.
                    _remember(filename, source, number)
                except SyntaxError:
                    if _IPYTHON_LINE.search(source) is None:
                        raise
            if _IPYTHON_LINE.search(source) is None:
                raise
            transformed = self._transform_or_raise(source, filename, error)
            source = transformed
            _remember(filename, source, number)
            tree = self._parse(source, filename)
        return self._compile_tree(tree, source, filename, echo)

    def _parse(self, source: str, filename: str) -> Module:
        tree: Module = compile(source, filename, "exec", self._flags | PyCF_ONLY_AST, dont_inherit=True)
        return tree

    def _transform_or_raise(self, source: str, filename: str, error: SyntaxError) -> str:
        """The source transformed by IPython; raises the Python error if IPython changes nothing."""
        try:
            transformed = self._transform(source)
        except SyntaxError:
            raise error from None
        except ImportError:
            line = _IPYTHON_LINE.search(source)
            number = source.count("\n", 0, line.end() if line is not None else 0) + 1
            message = "this cell uses IPython syntax (%magic, !command or ?help), and IPython is not installed here"
            text = source.split("\n")[number - 1]
            raise SyntaxError(message, (filename, number, 1, text)) from None
        if transformed.strip() == source.strip():
            raise error from None
        return transformed

    def _compile_tree(self, tree: Module, source: str, filename: str, echo: bool) -> Cell:
        statements = tree.body
        expression = None
        last_statement = statements[-1] if echo and statements else None
        if isinstance(last_statement, Expr) and not _ends_in_semicolon(source, last_statement):
            expression = last_statement.value
            statements.pop()
        body = last = None
        if statements:
            body = compile(tree, filename, "exec", self._flags, dont_inherit=True)
            self._flags |= body.co_flags & _FUTURE_FLAGS
        if expression is not None:
            last = compile(Expression(expression), filename, "eval", self._flags, dont_inherit=True)
        return Cell(body, last)


def _dedent(source: str) -> str:
    """The source without the indentation of its first line, as in Jupyter: code is often copied from inside a block.
    Lines with less indentation are not changed."""
    lines = source.split("\n")
    first = next((line for line in lines if line.strip() and not line.lstrip().startswith("#")), "")
    indent = first[: len(first) - len(first.lstrip(" \t"))]
    if not indent:
        return source
    return "\n".join(line[len(indent) :] if line.startswith(indent) else line for line in lines)


def _remember(filename: str, source: str, number: int) -> None:
    lines = [line + "\n" for line in source.split("\n")]
    # An entry without a modification time is never checked against the file system.
    linecache.cache[filename] = (len(source), None, lines, filename)
    linecache.cache.pop(f"<cell {number - KEPT_CELL_SOURCES}>", None)


def _ends_in_semicolon(source: str, statement: Expr) -> bool:
    """Whether a `;` follows the statement, which is the last one: after it only comments are possible."""
    if ";" not in source:
        return False
    line = source.split("\n")[(statement.end_lineno or statement.lineno) - 1]
    # Column offsets count UTF-8 bytes.
    return line.encode()[statement.end_col_offset :].lstrip().startswith(b";")
