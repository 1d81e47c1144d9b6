"""Files and functions stay small enough to be read at one sitting."""

from __future__ import annotations

import ast

from tests.architecture.sources import EVERYTHING, Module, modules

FILE_LINES = 600
FUNCTION_LINES = 70


def long_functions(module: Module) -> list[str]:
    """Name the functions of `module` that are longer than the limit, decorators not counted."""
    return [
        f"{module.path}:{node.lineno} {node.name}: {length} lines"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    ]


def test_no_file_is_longer_than_600_lines() -> None:
    lengths = {module.path: len(module.text.splitlines()) for module in modules(*EVERYTHING)}
    assert {path: lines for path, lines in lengths.items() if lines > FILE_LINES} == {}


def test_no_function_is_longer_than_70_lines() -> None:
    assert [found for module in modules(*EVERYTHING) for found in long_functions(module)] == []


def test_a_function_of_71_lines_is_found_and_one_of_70_is_not() -> None:
    def source(lines: int) -> Module:
        return Module.of("lakehouse/x.py", "def f():\n" + "    pass\n" * (lines - 1))

    assert long_functions(source(70)) == []
    assert long_functions(source(71)) == ["lakehouse/x.py:1 f: 71 lines"]
