"""Limits on the length of files and functions and on the number of parameters."""

from __future__ import annotations

import ast

from tests.architecture.sources import EVERYTHING, Module, modules

FILE_LINES = 600
FUNCTION_LINES = 70
PARAMETERS = 5
#: A function with more parameters gives a reason on its `def` line or above it: `# parameters: <reason>`.
REASON = "# parameters: "


def long_functions(module: Module) -> list[str]:
    """Return the functions of `module` that are longer than the limit, without decorators.

    The docstring of a function with a reason for many parameters is not counted, because it describes each of them.
    """
    lines = module.text.splitlines()
    functions = []
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if _has_reason(node, lines) and ast.get_docstring(node) is not None:
            length -= (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
        if length > FUNCTION_LINES:
            functions.append(f"{module.path}:{node.lineno} {node.name}: {length} lines")
    return functions


def _has_reason(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str]) -> bool:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return any(REASON in line for line in lines[max(first - 3, 0) : node.body[0].lineno])


def many_parameters(module: Module) -> list[str]:
    """Return the functions of `module` with more than five parameters and no comment with a reason."""
    lines = module.text.splitlines()
    found = []
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        names = [argument.arg for argument in arguments if argument.arg not in ("self", "cls")]
        if len(names) > PARAMETERS and not _has_reason(node, lines):
            found.append(f"{module.path}:{node.name}")
    return found


def test_no_file_is_longer_than_600_lines() -> None:
    lengths = {module.path: len(module.text.splitlines()) for module in modules(*EVERYTHING)}
    assert {path: lines for path, lines in lengths.items() if lines > FILE_LINES} == {}


def test_no_function_is_longer_than_70_lines() -> None:
    assert [found for module in modules(*EVERYTHING) for found in long_functions(module)] == []


def test_no_function_has_more_than_five_parameters_without_a_reason() -> None:
    found = [name for module in modules("lakehouse", "plugins") for name in many_parameters(module)]
    assert found == []


def test_a_function_with_six_parameters_is_found_and_a_reason_excuses_it() -> None:
    source = "def f(a, b, c, d, e, g):\n    pass\n"
    assert many_parameters(Module.of("lakehouse/x.py", source)) == ["lakehouse/x.py:f"]
    assert many_parameters(Module.of("lakehouse/x.py", f"{REASON}a table function\n{source}")) == []


def test_a_function_of_71_lines_is_found_and_one_of_70_is_not() -> None:
    def source(lines: int) -> Module:
        return Module.of("lakehouse/x.py", "def f():\n" + "    pass\n" * (lines - 1))

    assert long_functions(source(70)) == []
    assert long_functions(source(71)) == ["lakehouse/x.py:1 f: 71 lines"]
