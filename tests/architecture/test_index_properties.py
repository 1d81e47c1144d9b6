"""Modules that ask properties of the index instead of its placement; their number may only shrink."""

from __future__ import annotations

import ast

import pytest

from tests.architecture.sources import modules

#: Properties of an index: fields of `IndexType`, of `StagingLayout`, and of the options of one index.
PROPERTIES = frozenset(
    {
        "global_keys",
        "has_ring",
        "hash_fields",
        "hash_order",
        "hashed_fields",
        "hashes_keys",
        "is_global",
        "moves_option",
        "moves_rows",
        "stores_locations",
        "uses_filters",
    }
)
#: Names that other values have, too; they count if they are read from an index, its options or its layout.
SHARED_NAMES = frozenset({"buckets", "engine", "spread_column", "spread_large"})
OWNERS = frozenset({"index", "index_type", "layout", "policy"})
#: The index types themselves: a module that imports one compares it.
TYPES = frozenset(
    {
        "BLOOM",
        "BUCKET",
        "CONSISTENT_BUCKET",
        "GLOBAL_BLOOM",
        "GLOBAL_SIMPLE",
        "RECORD_INDEX",
        "RECORD_LEVEL_INDEX",
        "SIMPLE",
    }
)
#: The packages that implement indexes, and the module that declares them.
IMPLEMENTATIONS = ("lakehouse/core/index", "lakehouse/core/operations/placement", "lakehouse/model/index_type.py")
#: The modules that ask. Remove a module here when it asks no more; do not add one: ask the placement of the table.
ASKING = frozenset(
    {
        "lakehouse/core/files/stage/staging.py",
        "lakehouse/core/operations/create/declare.py",
        "lakehouse/core/operations/services/filter_build.py",
        "lakehouse/core/operations/write/bootstrap.py",
        "lakehouse/core/planning/table_version.py",
        "lakehouse/core/state/table_config.py",
        "lakehouse/platform/catalog/declared_settings.py",
        "lakehouse/platform/catalog/existing_tables.py",
        "lakehouse/platform/ingest/transform.py",
        "lakehouse/platform/services/look.py",
        "lakehouse/platform/sources/tables/table_source.py",
        "lakehouse/spec/options/index.py",
        "lakehouse/spec/table/table_spec.py",
    }
)


def asked_properties(tree: ast.AST) -> set[str]:
    """Return the properties of indexes that a module reads, and the index types that it imports."""
    properties: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value).rpartition(".")[2]
            if node.attr in PROPERTIES or (node.attr in SHARED_NAMES and owner in OWNERS):
                properties.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.module == "lakehouse.model.index_type":
            properties |= {alias.name for alias in node.names} & TYPES
    return properties


def asking_modules() -> dict[str, set[str]]:
    """Return the modules that are no implementation of an index and ask its properties."""
    return {
        module.path: properties
        for module in modules("lakehouse", "plugins")
        if not module.within(*IMPLEMENTATIONS) and (properties := asked_properties(module.tree))
    }


def test_only_listed_modules_ask_properties_of_the_index() -> None:
    assert {path: properties for path, properties in asking_modules().items() if path not in ASKING} == {}


def test_list_of_asking_modules_has_no_module_that_asks_no_more() -> None:
    assert ASKING - asking_modules().keys() == set()


@pytest.mark.parametrize(
    "source",
    [
        "policies.index.index_type.has_ring",
        "context.layout.buckets",
        "config.kind.is_global",
        "from lakehouse.model.index_type import BLOOM",
    ],
)
def test_question_about_the_index_is_seen(source: str) -> None:
    assert asked_properties(ast.parse(source))


@pytest.mark.parametrize(
    "source", ["policies.clustering.buckets", "run.buckets", "table.engine", "from lakehouse.model.keys import SIMPLE"]
)
def test_other_attributes_are_no_question_about_the_index(source: str) -> None:
    assert asked_properties(ast.parse(source)) == set()
