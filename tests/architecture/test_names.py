"""Local names are nouns: participles that do not describe the thing occur less and less often."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator

from tests.architecture.sources import CODE, Module, modules, package_of, report_lower

#: Participles that stand alone. A name such as `matches`, `instants` or `known_columns` says what the value is.
PARTICIPLES = frozenset({"asked", "found", "kept", "known", "told"})
#: Parameters of protocols that users implement: (function, parameter). A new name would break their programs.
PUBLIC_PARAMETERS = frozenset({("read", "known")})
#: Allowed number of such names in the packages that are not revised. Numbers only shrink.
ALLOWED = {"lakehouse/platform": 7}


def participles(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name of the participles that functions bind: variables and parameters."""
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)]
    bound = {
        (node.lineno, node.col_offset, name)
        for function in functions
        for node, name in _bound(function)
        if name in PARTICIPLES and (getattr(function, "name", ""), name) not in PUBLIC_PARAMETERS
    }
    yield from ((line, name) for line, _, name in sorted(bound))


def _bound(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Iterator[tuple[ast.expr | ast.arg, str]]:
    arguments = function.args
    for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        yield argument, argument.arg
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node, node.id


def counted(parsed: Iterable[Module]) -> Counter[str]:
    """Return the number of participles per package."""
    return Counter(package_of(module.path) for module in parsed for _ in participles(module.tree))


def test_local_names_are_nouns() -> None:
    numbers = counted(modules(*CODE))
    report_lower(numbers, ALLOWED)
    above = {
        package: [
            f"{module.path}:{line} {name}"
            for module in modules(*CODE)
            if package_of(module.path) == package
            for line, name in participles(module.tree)
        ]
        for package, number in numbers.items()
        if number > ALLOWED.get(package, 0)
    }
    assert above == {}, "name the thing: `matches`, `instants`, `columns_of_table`"


def test_variable_and_parameter_are_counted_and_public_parameter_and_field_are_not() -> None:
    source = """
class Plan:
    kept: int
    def read(self, *, known): ...
def f(found):
    asked = [kept for kept in found]
    return lambda told: (asked, told)
"""
    module = Module.of("lakehouse/core/files/x.py", source)
    assert [name for _, name in participles(module.tree)] == ["found", "asked", "kept", "told"]
    assert counted([module]) == {"lakehouse/core": 4}
