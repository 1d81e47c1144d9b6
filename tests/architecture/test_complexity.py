"""A function has few branches, so that a reader can hold them in mind."""

from __future__ import annotations

import ast

from tests.architecture.sources import CODE, Module, modules

BRANCHES = 20
#: Functions with more branches, by name, because modules move. The list only shrinks.
ALLOWED = frozenset(
    {
        "_column",
        "_header",
        "_several",
        "_varying",
        "_with_new",
        "clean_up_ended_writes",
        "declared_rule",
        "described",
        "plan_groups",
    }
)


def branches(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the cyclomatic complexity of a function with its nested functions.

    Ruff's C901 counts statements only. This number also includes conditional expressions, comprehensions with their
    conditions, and the operands of `and` and `or`, which a reader has to follow as well.
    """
    number = 1
    for node in ast.walk(function):
        match node:
            case ast.If() | ast.IfExp() | ast.For() | ast.AsyncFor() | ast.While() | ast.ExceptHandler():
                number += 1
            case ast.match_case():
                number += 1
            case ast.BoolOp(values=values):
                number += len(values) - 1
            case ast.comprehension(ifs=conditions):
                number += 1 + len(conditions)
    return number


def complex_functions(module: Module) -> list[str]:
    """Return the names of the functions of a module that have more branches than the limit."""
    return [
        node.name
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and branches(node) > BRANCHES
    ]


def test_functions_have_few_branches() -> None:
    complex_names = {name: module.path for module in modules(*CODE) for name in complex_functions(module)}
    if simplified := ALLOWED - complex_names.keys():
        print(f"remove from ALLOWED: {sorted(simplified)}")
    above = {name: path for name, path in complex_names.items() if name not in ALLOWED}
    assert above == {}, "divide the function, or replace its branches by a table"


def test_each_kind_of_branch_is_counted() -> None:
    source = """
def f(rows):
    if rows and rows[0] or not rows:
        return [row if row else 0 for row in rows if row]
    for row in rows:
        while row:
            try:
                pass
            except ValueError:
                pass
    match rows:
        case []:
            return 1
"""
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    # The function, if, and, or, the conditional expression, the comprehension, its condition, for, while, except, case.
    assert branches(function) == 11


def test_function_above_the_limit_is_seen() -> None:
    source = "def f(x):\n" + "    if x:\n        pass\n" * BRANCHES
    assert complex_functions(Module.of("lakehouse/x.py", source)) == ["f"]
    shorter = source.replace("    if x:\n        pass\n", "", 1)
    assert complex_functions(Module.of("lakehouse/x.py", shorter)) == []
