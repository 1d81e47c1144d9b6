"""Tests count steps, requests or scheduler loops: no assertion compares elapsed time with a number."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.architecture.sources import Module, modules

#: Functions that read the machine's clock; simulated clocks (`env.clock.now_ms()`) are not among them.
CLOCKS = frozenset(
    f"{function}{unit}"
    for function in ("monotonic", "perf_counter", "process_time", "thread_time", "time")
    for unit in ("", "_ns")
)
ORDER = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
#: Latency is measured here.
MEASURING = ("tests/bench",)


def clock_names(tree: ast.AST) -> frozenset[str]:
    """Return the names under which a module imports functions of `time`."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module == "time"]
    return frozenset(alias.asname or alias.name for node in imports for alias in node.names if alias.name in CLOCKS)


def reads_clock(node: ast.AST, clocks: frozenset[str], derived: frozenset[str]) -> bool:
    """Return whether an expression reads a clock or a variable that was derived from one."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name) and part.id in derived:
            return True
        if isinstance(part, ast.Call):
            called = part.func
            if isinstance(called, ast.Name) and called.id in clocks:
                return True
            if (
                isinstance(called, ast.Attribute)
                and called.attr in CLOCKS
                and isinstance(called.value, ast.Name)
                and called.value.id == "time"
            ):
                return True
    return False


def computes_duration(
    node: ast.AST, clocks: frozenset[str], readings: frozenset[str], durations: frozenset[str]
) -> bool:
    """Return whether an expression is a sum or difference of a clock reading, or uses a variable that holds one."""
    sums = (part for part in ast.walk(node) if isinstance(part, ast.BinOp))
    uses_duration = any(isinstance(part, ast.Name) and part.id in durations for part in ast.walk(node))
    return uses_duration or any(reads_clock(part, clocks, readings) for part in sums)


def derived_variables(function: ast.AST, clocks: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the variables of a function that hold clock readings, and those that hold durations or deadlines."""
    assigned = [
        (target.id, node.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    readings, durations = frozenset[str](), frozenset[str]()
    while True:
        read = readings | {name for name, value in assigned if reads_clock(value, clocks, readings)}
        computed = durations | {n for n, value in assigned if computes_duration(value, clocks, read, durations)}
        if (read, computed) == (readings, durations):
            return readings, durations
        readings, durations = frozenset(read), frozenset(computed)


def elapsed_time_assertions(module: Module) -> Iterator[str]:
    """Yield the lines of a module that assert an order between a duration or deadline and another value."""
    clocks = clock_names(module.tree)
    for function in ast.walk(module.tree):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        readings, durations = derived_variables(function, clocks)
        for assertion in (node for node in ast.walk(function) if isinstance(node, ast.Assert)):
            for compare in (node for node in ast.walk(assertion.test) if isinstance(node, ast.Compare)):
                ordered = any(isinstance(operator, ORDER) for operator in compare.ops)
                if ordered and computes_duration(compare, clocks, readings, durations):
                    yield f"{module.path}:{compare.lineno}"


def test_no_test_asserts_elapsed_time() -> None:
    found = [line for m in modules("tests") if not m.within(*MEASURING) for line in elapsed_time_assertions(m)]
    assert found == []


def test_assertions_on_elapsed_time_are_found() -> None:
    source = """
import time
from time import perf_counter

def direct():
    assert time.monotonic() - 3 < 5

def by_variables():
    started = perf_counter()
    took = perf_counter() - started
    assert took < LIMIT_S, "slow"

def by_simulated_clock(env):
    began = env.clock.now_ms()
    assert env.clock.now_ms() - began < 100

def by_order(event):
    started = time.time()
    assert event.at >= int(started)

def by_deadline(done):
    deadline = time.monotonic() + 60
    assert done() or time.monotonic() < deadline

def by_count(requests):
    assert requests <= 5
"""
    assert list(elapsed_time_assertions(Module.of("tests/x.py", source))) == [
        "tests/x.py:6",
        "tests/x.py:11",
        "tests/x.py:23",
    ]
