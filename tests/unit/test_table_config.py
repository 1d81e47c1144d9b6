"""hoodie.properties as one value: what is read, what is refused, what a new table says (format: timeline.md 2)."""

from __future__ import annotations

import pytest

from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.keys import KeyConfig, KeyGeneratorType, TimestampFormat
from lakehouse.model.merge import MergeMode
from lakehouse.operations.declare import TableDeclaration, declared_properties
from lakehouse.state.table_config import new_table_properties, parse_table_config

MINIMAL = {"hoodie.table.name": "t", "hoodie.table.version": "9", "hoodie.table.recordkey.fields": "id"}


def declared(**changes: object) -> dict[str, str]:
    """Properties of a declared table."""
    return declared_properties(TableDeclaration(**{"name": "t", "record_key": ("id",), **changes}))


def test_what_is_written_is_read_back() -> None:
    keys = KeyConfig(
        generator=KeyGeneratorType.CUSTOM,
        record_key_fields=("id", "region"),
        partition_fields=("p", "at"),
        partition_types=("SIMPLE", "TIMESTAMP"),
        hive_style=True,
        url_encode=True,
        timestamp=TimestampFormat(type="SCALAR", scalar_unit="days", output_format="yyyy/MM", output_timezone="GMT"),
        consistent_timestamps=True,
    )
    for version in (8, 9):
        raw = new_table_properties(
            name="t",
            version=version,
            keys=keys,
            ordering="ts",
            merge_mode=MergeMode.EVENT_TIME_ORDERING,
            create_schema=None,
            extra={"hoodie.index.type": "BUCKET"},
        )
        config = parse_table_config(raw, "here")
        assert config.keys == keys
        assert (config.version, config.layout, config.timezone) == (version, 2, "UTC")
        assert (config.ordering_fields, config.merge_mode) == (("ts",), MergeMode.EVENT_TIME_ORDERING)
        assert config.raw == raw


def test_the_ordering_column_is_named_as_each_version_names_it() -> None:
    nine, eight = declared(ordering="ts"), declared(ordering="ts", options={"hoodie.write.table.version": "8"})
    assert nine["hoodie.table.ordering.fields"] == eight["hoodie.table.precombine.field"] == "ts"
    assert "hoodie.table.precombine.field" not in nine and "hoodie.table.ordering.fields" not in eight
    assert nine["hoodie.table.format"] == "native" and "hoodie.table.format" not in eight
    assert eight["hoodie.compaction.payload.class"].endswith("DefaultHoodieRecordPayload")


def test_unknown_properties_are_kept() -> None:
    assert parse_table_config({**MINIMAL, "some.key": "1"}, "here").raw["some.key"] == "1"


@pytest.mark.parametrize("version", ["", "1", "5", "7", "10", "nine"])
def test_other_versions_are_refused_with_the_supported_ones(version: str) -> None:
    with pytest.raises(UnsupportedError, match="versions 6, 8, 9 are"):
        parse_table_config({**MINIMAL, "hoodie.table.version": version}, "here")


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"hoodie.bootstrap.base.path": "/old"}, "hoodie.bootstrap.base.path"),
        ({"hoodie.datasource.write.drop.partition.columns": "true"}, "drop.partition.columns=true"),
        ({"hoodie.table.format": "iceberg"}, "hoodie.table.format=iceberg"),
        ({"hoodie.timeline.layout.version": "1"}, "layout 1"),
    ],
)
def test_properties_that_cannot_be_honoured_are_refused_by_name(properties: dict[str, str], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        parse_table_config({**MINIMAL, **properties}, "here")


def test_a_file_without_table_name_is_no_table() -> None:
    with pytest.raises(UserError, match=r"here: .*hoodie\.table\.name"):
        parse_table_config({"hoodie.table.version": "9"}, "here")


@pytest.mark.parametrize(
    ("properties", "generator"),
    [
        ({}, KeyGeneratorType.NON_PARTITION),
        ({"hoodie.table.partition.fields": "p"}, KeyGeneratorType.SIMPLE),
        ({"hoodie.table.partition.fields": "p,q"}, KeyGeneratorType.COMPLEX),
        (
            {"hoodie.table.partition.fields": "p", "hoodie.table.recordkey.fields": "a,b"},
            KeyGeneratorType.COMPLEX,
        ),
        ({"hoodie.table.partition.fields": "p:SIMPLE"}, KeyGeneratorType.CUSTOM),
        (
            {
                "hoodie.table.partition.fields": "at",
                "hoodie.table.keygenerator.class": "org.apache.hudi.keygen.TimestampBasedKeyGenerator",
            },
            KeyGeneratorType.TIMESTAMP,
        ),
        (
            {"hoodie.table.partition.fields": "p", "hoodie.table.keygenerator.type": "COMPLEX_AVRO"},
            KeyGeneratorType.COMPLEX,
        ),
    ],
)
def test_the_key_generator_is_declared_or_inferred(properties: dict[str, str], generator: KeyGeneratorType) -> None:
    assert parse_table_config({**MINIMAL, **properties}, "here").keys.generator is generator


@pytest.mark.parametrize(
    ("properties", "mode"),
    [
        ({"hoodie.record.merge.mode": "EVENT_TIME_ORDERING"}, MergeMode.EVENT_TIME_ORDERING),
        ({"hoodie.record.merge.mode": "SOMETHING"}, MergeMode.CUSTOM),
        ({}, MergeMode.COMMIT_TIME_ORDERING),
        ({"hoodie.table.ordering.fields": "ts"}, MergeMode.EVENT_TIME_ORDERING),
        (
            {"hoodie.compaction.payload.class": "org.apache.hudi.common.model.DefaultHoodieRecordPayload"},
            MergeMode.EVENT_TIME_ORDERING,
        ),
        (
            {
                "hoodie.compaction.payload.class": "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload",
                "hoodie.table.precombine.field": "ts",
            },
            MergeMode.COMMIT_TIME_ORDERING,
        ),
        ({"hoodie.compaction.payload.class": "com.example.Own"}, MergeMode.CUSTOM),
    ],
)
def test_the_merge_mode_is_declared_or_follows_from_the_payload(properties: dict[str, str], mode: MergeMode) -> None:
    assert parse_table_config({**MINIMAL, **properties}, "here").merge_mode is mode


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "needs a name"),
        ({"record_key": ()}, "needs a record key"),
        ({"options": {"hoodie.write.table.version": "6"}}, "versions 8 and 9 are written"),
        ({"options": {"hoodie.parquet.max.filesize": "1"}}, "Did you mean 'hoodie.parquet.max.file.size'"),
        ({"merge_mode": MergeMode.EVENT_TIME_ORDERING}, "needs an ordering column"),
        ({"merge_mode": MergeMode.CUSTOM}, "CUSTOM is not supported"),
        ({"partition_by": ("p:DATE",)}, "type must be SIMPLE or TIMESTAMP"),
        ({"partition_by": ("at:TIMESTAMP",)}, "needs its formats"),
        (
            {"record_key": ("a", "b"), "partition_by": ("p",), "key_generator": KeyGeneratorType.SIMPLE},
            "one record key column, not a, b",
        ),
        ({"partition_by": ("p",), "key_generator": KeyGeneratorType.NON_PARTITION}, "contradict"),
        ({"key_generator": KeyGeneratorType.COMPLEX}, "contradict"),
        ({"options": {"hoodie.datasource.write.hive_style_partitioning": "on"}}, "expected true or false"),
    ],
)
def test_a_declaration_that_does_not_fit_together_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        declared(**changes)


def test_what_must_not_change_later_is_stored_with_the_table() -> None:
    properties = declared(
        options={"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3", "hoodie.index.bloom.fpp": "0.1"}
    )
    assert properties["hoodie.index.type"] == "BUCKET"
    assert properties["hoodie.bucket.index.num.buckets"] == "3"
    assert "hoodie.index.bloom.fpp" not in properties
