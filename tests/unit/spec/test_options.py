"""Options: each is declared once, and invalid keys and values are refused."""

from __future__ import annotations

import pytest

from lakehouse.errors import UserError
from lakehouse.spec.options.declarations import declarations, options_markdown
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.options.policies import Policies


def test_no_options_give_the_defaults() -> None:
    policies = parse_options({})
    assert policies == Policies()
    assert (policies.write.max_file_bytes, policies.index.type) == (120 * 1024 * 1024, "SIMPLE")


def test_values_are_parsed_to_the_type_of_their_field() -> None:
    policies = parse_options(
        {
            "hoodie.parquet.max.file.size": " 1000 ",
            "hoodie.index.bloom.fpp": "0.5",
            "hoodie.combine.before.insert": "TRUE",
            "hoodie.index.type": "bucket",
            "hoodie.bucket.index.num.buckets": "4",
        }
    )
    assert policies.write.max_file_bytes == 1000
    assert policies.write.bloom_fpp == 0.5
    assert policies.write.combine_before_insert is True
    assert (policies.index.type, policies.index.buckets) == ("BUCKET", 4)


def test_alias_sets_the_same_field() -> None:
    assert parse_options({"hoodie.cleaner.policy.failed.writes": "LAZY"}).transaction.failed_writes == "LAZY"


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("hoodie.parquet.max.filesize", "hoodie.parquet.max.file.size"),
        ("hoodie.index.typ", "hoodie.index.type"),
        ("hoodie.bucket.index.num.bucket", "hoodie.bucket.index.num.buckets"),
    ],
)
def test_misspelt_option_is_refused_with_the_nearest_key(misspelt: str, meant: str) -> None:
    with pytest.raises(UserError, match=f"{misspelt}.*Did you mean '{meant}'"):
        parse_options({misspelt: "1"})


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("hoodie.parquet.max.file.size", "big", "expected int"),
        ("hoodie.parquet.max.file.size", "-1", "must not be negative"),
        ("hoodie.index.bloom.fpp", "x", "expected float"),
        ("hoodie.combine.before.insert", "yes", "expected true or false"),
        ("hoodie.index.type", "HBASE", "must be one of SIMPLE, GLOBAL_SIMPLE, BLOOM, GLOBAL_BLOOM, RECORD_INDEX"),
        ("hoodie.parquet.compression.codec", "zst", "Did you mean 'zstd'"),
    ],
)
def test_invalid_value_is_refused_with_its_key(key: str, value: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected) as raised:
        parse_options({key: value})
    assert key in str(raised.value) and repr(value) in str(raised.value)


def test_override_keeps_other_values() -> None:
    table = parse_options({"hoodie.index.type": "BUCKET", "hoodie.parquet.max.file.size": "5"})
    call = table.override({"hoodie.parquet.max.file.size": "7"})
    assert (call.index.type, call.write.max_file_bytes) == ("BUCKET", 7)
    assert table.override({}) is table


def test_keys_of_another_parser_pass_only_as_also_known() -> None:
    assert parse_options({"hoodie.write.table.version": "8"}, also_known=frozenset({"hoodie.write.table.version"}))
    with pytest.raises(UserError, match="unknown option"):
        parse_options({"hoodie.write.table.version": "8"})


def test_every_option_is_documented_and_no_key_is_declared_twice() -> None:
    declared = list(declarations())
    keys = [key for option in declared for key in (option["key"], *option["aliases"])]
    assert len(keys) == len(set(keys))
    assert all(
        option["text"].endswith(".") and option["type"] in ("int", "float", "bool", "str") for option in declared
    )
    table = options_markdown()
    assert all(f"`{option['key']}`" in table for option in declared)
