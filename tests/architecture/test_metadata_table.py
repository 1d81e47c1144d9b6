"""The fast path for few records of the metadata table has few doors, and one module knows the kinds of partitions."""

from __future__ import annotations

import ast

import pytest

from lakehouse.model.partition_kind import PartitionKind
from tests.architecture.sources import Module, modules
from tests.architecture.test_imports import imported

SMALL = "lakehouse/core/metadata/small"
#: The modules that choose between the fast path and the general code.
CALLERS = (
    "lakehouse/core/metadata/read/table.py",
    "lakehouse/core/metadata/services/compaction.py",
    "lakehouse/core/metadata/write/commit.py",
)


def test_only_three_modules_choose_the_fast_path_of_the_metadata_table() -> None:
    package = SMALL.replace("/", ".")
    callers = [
        module.path
        for module in modules("lakehouse")
        if not module.within(SMALL) and any(name.startswith(f"{package}.") for name in imported(module.tree))
    ]
    assert callers == list(CALLERS)


def test_refusal_of_the_fast_path_is_raised_and_caught_in_one_module() -> None:
    places = {
        module.path: count for module in modules("lakehouse") if (count := module.text.count("UnusualRecordError"))
    }
    assert places == {f"{SMALL}/records.py": 3}


#: The only module that finds the kind of a partition by a prefix of its name.
KINDS = "lakehouse/model/partition_kind.py"
PREFIXES = frozenset(kind.value for kind in PartitionKind if kind.is_named_by_users)


def prefixes(module: Module) -> list[str]:
    """Return the places of a module that find the kind of an index partition by a prefix of its name."""
    return [
        f"{module.path}:{node.lineno}"
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Constant) and node.value in PREFIXES) or _tests_prefix(node)
    ]


def _tests_prefix(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    is_test = node.func.attr in ("startswith", "removeprefix")
    return is_test and any(name in ast.unparse(arg) for arg in node.args for name in ("SECONDARY", "EXPRESSION"))


@pytest.mark.parametrize(
    "source",
    [
        "SECONDARY = 'secondary_index_'",
        "name.startswith(PartitionKind.SECONDARY_INDEX)",
        "name.removeprefix(EXPRESSION_PREFIX)",
        "name.startswith(('expr_index_', 'x'))",
    ],
)
def test_prefix_of_an_index_partition_is_seen(source: str) -> None:
    assert prefixes(Module.of("m.py", source)) == ["m.py:1"]


def test_only_one_module_finds_the_kind_of_an_index_partition_by_a_prefix() -> None:
    places = [place for module in modules("lakehouse", "plugins") if module.path != KINDS for place in prefixes(module)]
    assert places == [], "use partition_kind(name)"
