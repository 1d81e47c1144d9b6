"""Options that declare indexes of the metadata table."""

from __future__ import annotations

import pytest

from lakehouse.errors import SettingError
from lakehouse.model.indexing import DeclaredIndex
from lakehouse.spec.options.indexing import IndexingPolicy, expression_index
from lakehouse.spec.options.parser import parse_options


def declared(**fields: str) -> list[tuple[str, str, str, str, dict[str, str]]]:
    indexes = IndexingPolicy(**fields).declared
    return [(i.partition, i.kind, i.column, i.function, dict(i.options)) for i in indexes]


def test_secondary_indexes_are_named_after_their_column_or_as_declared() -> None:
    assert declared(secondary="city, idx:rider_id") == [
        ("secondary_index_city", "secondary_index", "city", "identity", {}),
        ("secondary_index_idx", "secondary_index", "rider_id", "identity", {}),
    ]


def test_expression_indexes_have_a_function_a_kind_and_a_format() -> None:
    text = "h=hour(at); u = bloom_filters:UPPER(name); d=date_format(at, yyyy-MM-dd);"
    assert declared(expressions=text) == [
        ("expr_index_h", "column_stats", "at", "hour", {"expr": "hour"}),
        ("expr_index_u", "bloom_filters", "name", "upper", {"expr": "upper"}),
        ("expr_index_d", "column_stats", "at", "date_format", {"expr": "date_format", "format": "yyyy-MM-dd"}),
    ]
    assert repr(expression_index("d=date_format(at, 'HH')")) == "index d: column_stats of date_format(at, HH)"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"secondary": "a,b,a"}, "secondary_index_a is declared twice"),
        ({"secondary": "address.city"}, "is not the name of an index"),
        ({"secondary": ":city"}, "neither `column` nor `name:column`"),
        ({"expressions": "hour(at)"}, "not of the form"),
        ({"expressions": "h=hour(at) x=day(at)"}, "not of the form"),
        ({"record_index": True, "partitioned_record_index": True}, "contradict"),
    ],
)
def test_wrong_declarations_are_refused_with_their_option(fields: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        IndexingPolicy(**fields)


def test_options_of_hudi_declare_the_record_index_and_bloom_filters() -> None:
    options = {"hoodie.metadata.record.index.enable": "true", "hoodie.metadata.index.bloom.filter.enable": "true"}
    policy = parse_options(options).indexing
    assert policy.record_index and policy.bloom_filters and not policy.partitioned_record_index


def test_declared_index_of_a_secondary_index_is_shown_with_its_column() -> None:
    assert repr(DeclaredIndex(name="c", kind="secondary_index", column="city")) == "index c: secondary_index of city"
