"""hoodie.properties as one value: parsing, refused properties, properties of a new table (TL-2)."""

from __future__ import annotations

import pickle
from dataclasses import replace
from uuid import RFC_4122, UUID

import pytest

from lakehouse.core.layout.registry import table_layout
from lakehouse.core.operations.create.declare import TableDeclaration, declared_properties
from lakehouse.core.state.merge_config import merge_properties, parse_merge_rule
from lakehouse.core.state.table_config import TableConfig, new_table_properties, parse_table_config, require_mergeable
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.keys import KeyConfig, KeyGeneratorType, TimestampFormat
from lakehouse.model.merge import UNAVAILABLE, MergeMode, MergeRule, PartialMode, merge_strategy_id

EVENT_ID, COMMIT_ID = "eeb8d96f-b1e4-49fd-bbf8-28ac514178e5", "ce9acb64-bde0-424c-9b91-f6ebba25356d"
MODEL = "org.apache.hudi.common.model."
COMMIT, EVENT = MergeRule(mode=MergeMode.COMMIT_TIME_ORDERING), MergeRule(mode=MergeMode.EVENT_TIME_ORDERING)
MINIMAL = {"hoodie.table.name": "t", "hoodie.table.version": "9", "hoodie.table.recordkey.fields": "id"}


def declared(**changes: object) -> dict[str, str]:
    """Return the properties of a declared table."""
    return declared_properties(TableDeclaration(**{"name": "t", "record_key": ("id",), **changes}))


def test_new_table_properties_parse_to_the_declared_config() -> None:
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
            layout=table_layout(version),
            keys=keys,
            rule=MergeRule(mode=MergeMode.EVENT_TIME_ORDERING, ordering=("ts",)),
            create_schema=None,
            extra={"hoodie.index.type": "BUCKET"},
        )
        config = parse_table_config(raw, "here")
        assert config.keys == keys
        assert (config.version, config.layout.version, config.timezone) == (version, version, "UTC")
        assert (config.ordering_fields, config.merge_mode) == (("ts",), MergeMode.EVENT_TIME_ORDERING)
        assert config.raw == raw


def test_merge_rule_is_parsed_from_properties() -> None:
    debezium = declared(
        ordering=["_event_bin_file", "_event_pos"], delete_field="_change_operation_type", delete_marker="d"
    )
    assert parse_table_config(debezium, "here").merge_rule == MergeRule(
        mode=MergeMode.EVENT_TIME_ORDERING,
        ordering=("_event_bin_file", "_event_pos"),
        delete_field="_change_operation_type",
        delete_marker="d",
    )
    postgres = declared(ordering="_event_lsn", partial_update="fill_unavailable")
    assert parse_table_config(postgres, "here").merge_rule == MergeRule(
        mode=MergeMode.EVENT_TIME_ORDERING, ordering=("_event_lsn",), partial=PartialMode.FILL_UNAVAILABLE
    )
    own = parse_table_config(declared(merger="os.path:join"), "here")
    assert (own.merge_mode, own.merge_rule.merger) == (MergeMode.CUSTOM, "os.path:join")
    with pytest.raises(UnsupportedError, match="table of version 8 cannot declare several ordering columns"):
        declared(ordering=("a", "b"), options={"hoodie.write.table.version": "8"})


def test_ordering_columns_use_the_property_name_of_the_version() -> None:
    nine, eight = declared(ordering="ts"), declared(ordering="ts", options={"hoodie.write.table.version": "8"})
    assert nine["hoodie.table.ordering.fields"] == eight["hoodie.table.precombine.field"] == "ts"
    assert "hoodie.table.precombine.field" not in nine and "hoodie.table.ordering.fields" not in eight
    assert nine["hoodie.table.format"] == "native" and "hoodie.table.format" not in eight
    assert eight["hoodie.compaction.payload.class"].endswith("DefaultHoodieRecordPayload")


def test_unknown_properties_are_kept() -> None:
    assert parse_table_config({**MINIMAL, "some.key": "1"}, "here").raw["some.key"] == "1"


@pytest.mark.parametrize("version", ["", "1", "5", "7", "10", "nine"])
def test_unsupported_version_is_refused_with_supported_ones(version: str) -> None:
    with pytest.raises(UnsupportedError, match="versions 6, 8, 9 are"):
        parse_table_config({**MINIMAL, "hoodie.table.version": version}, "here")


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"hoodie.datasource.write.drop.partition.columns": "true"}, "drop.partition.columns=true"),
        ({"hoodie.table.format": "iceberg"}, "hoodie.table.format=iceberg"),
        ({"hoodie.timeline.layout.version": "1"}, "layout 1"),
    ],
)
def test_unsupported_property_is_refused_by_name(properties: dict[str, str], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        parse_table_config({**MINIMAL, **properties}, "here")


def test_properties_without_table_name_are_refused() -> None:
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
def test_key_generator_is_declared_or_inferred(properties: dict[str, str], generator: KeyGeneratorType) -> None:
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
        ({"hoodie.compaction.payload.class": "com.example.DefaultHoodieRecordPayload"}, MergeMode.CUSTOM),
        ({"hoodie.record.merge.strategy.id": EVENT_ID}, MergeMode.EVENT_TIME_ORDERING),
        ({"hoodie.record.merge.strategy.id": COMMIT_ID, "hoodie.table.ordering.fields": "ts"}, COMMIT.mode),
        ({"hoodie.record.merge.strategy.id": "9b450e53"}, MergeMode.CUSTOM),
    ],
)
def test_merge_mode_is_declared_or_follows_from_the_payload_class(properties: dict[str, str], mode: MergeMode) -> None:
    assert parse_table_config({**MINIMAL, **properties}, "here").merge_mode is mode


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "needs a name"),
        ({"record_key": (), "options": {"hoodie.index.type": "BUCKET"}}, "hashes the columns of the record key"),
        ({"options": {"hoodie.write.table.version": "7"}}, "versions 6, 8, 9 can be written"),
        ({"options": {"hoodie.parquet.max.filesize": "1"}}, "Did you mean 'hoodie.parquet.max.file.size'"),
        ({"merge_mode": MergeMode.EVENT_TIME_ORDERING}, "needs an ordering column"),
        ({"merge_mode": MergeMode.CUSTOM}, "CUSTOM needs a merger"),
        ({"merge_mode": "EVENT_TIME_ORDERNG", "ordering": "ts"}, "Did you mean 'EVENT_TIME_ORDERING'"),
        (
            {"merger": "os.path:join", "merge_mode": "COMMIT_TIME_ORDERING"},
            "would never be called by merge mode COMMIT",
        ),
        ({"merger": "os.path.join"}, "expected package.module:function"),
        ({"merger": "no.such.module:merge"}, r"cannot be loaded \(No module named 'no', .*PYTHONPATH.*--py-files"),
        ({"merger": "os.path:no_such_function"}, "cannot be loaded"),
        ({"merger": "os:sep"}, "not a function but of type str"),
        ({"merger": "os.path:join", "partial_update": "IGNORE_DEFAULTS"}, "contradict"),
        ({"partial_update": "IGNORE_DEFAULT"}, "Did you mean 'IGNORE_DEFAULTS'"),
        ({"unavailable_value": "?"}, "needs partial update FILL_UNAVAILABLE"),
        ({"delete_field": "op"}, "belong together"),
        ({"delete_marker": "d"}, "belong together"),
        ({"ordering": ("a", "b", "a")}, "twice"),
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
def test_contradicting_declaration_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        declared(**changes)


def test_fixed_options_are_stored_in_the_table_properties() -> None:
    properties = declared(
        options={"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "3", "hoodie.index.bloom.fpp": "0.1"}
    )
    assert properties["hoodie.index.type"] == "BUCKET"
    assert properties["hoodie.bucket.index.num.buckets"] == "3"
    assert "hoodie.index.bloom.fpp" not in properties


NAMES = {
    "mode": "hoodie.record.merge.mode",
    "payload": "hoodie.compaction.payload.class",
    "strategy": "hoodie.record.merge.strategy.id",
    "merger": "hoodie.compaction.record.merger.strategy",
    "ordering": "hoodie.table.ordering.fields",
    "partial": "hoodie.table.partial.update.mode",
}


def versioned(version: int, **properties: str) -> TableConfig:
    """Return the configuration of a table of `version`; common properties have short names."""
    raw = {NAMES.get(name, name): value for name, value in properties.items()}
    return parse_table_config({**MINIMAL, "hoodie.table.version": str(version), **raw}, "here")


def ruled(version: int, **properties: str) -> MergeRule:
    """Return the merge rule of such a table."""
    return versioned(version, **properties).merge_rule


def test_version_decides_between_payload_class_and_strategy_id() -> None:
    """Version 6 writes the event-time strategy beside any payload class; the payload class decides."""
    both = {"payload": f"{MODEL}OverwriteWithLatestAvroPayload", "merger": EVENT_ID, "ordering": "ts"}
    assert ruled(6, **both) == replace(COMMIT, ordering=("ts",))
    assert ruled(8, **both) == replace(EVENT, ordering=("ts",))
    assert ruled(9, **both) == replace(COMMIT, ordering=("ts",))


@pytest.mark.parametrize(
    ("payload", "rule"),
    [
        (
            "OverwriteNonDefaultsWithLatestAvroPayload",
            replace(COMMIT, partial=PartialMode.IGNORE_DEFAULTS, combines_whole=True),
        ),
        ("PartialUpdateAvroPayload", replace(EVENT, partial=PartialMode.IGNORE_DEFAULTS)),
        ("AWSDmsAvroPayload", replace(COMMIT, delete_field="Op", delete_marker="D")),
        (
            "debezium.PostgresDebeziumAvroPayload",
            MergeRule(
                mode=EVENT.mode,
                ordering=("_event_lsn",),
                partial=PartialMode.FILL_UNAVAILABLE,
                unavailable="__debezium_unavailable_value",
                delete_field="_change_operation_type",
                delete_marker="d",
            ),
        ),
        (
            "debezium.MySqlDebeziumAvroPayload",
            MergeRule(
                mode=EVENT.mode,
                ordering=("_event_seq",),
                by_parts=True,
                delete_field="_change_operation_type",
                delete_marker="d",
            ),
        ),
    ],
)
def test_known_payload_class_becomes_a_rule_of_declared_mode_custom(payload: str, rule: MergeRule) -> None:
    wanted = rule if rule.ordering else replace(rule, ordering=("ts",))
    for version, also in ((6, {}), (8, {"mode": "CUSTOM", "strategy": "00000000-0000-0000-0000-000000000000"})):
        assert ruled(version, payload=MODEL + payload, ordering="ts", **also) == wanted
    assert versioned(6, payload=MODEL + payload).merge_mode is MergeMode.CUSTOM


def test_version_nine_properties_equal_the_rules_of_payload_classes() -> None:
    prefix = "hoodie.record.merge.property."
    postgres = ruled(
        9,
        mode="EVENT_TIME_ORDERING",
        ordering="_event_lsn",
        partial="FILL_UNAVAILABLE",
        **{
            f"{prefix}partial.update.unavailable.value": "?",
            f"{prefix}hoodie.payload.delete.field": "op",
            f"{prefix}hoodie.payload.delete.marker": "d",
        },
    )
    assert postgres == MergeRule(
        mode=EVENT.mode,
        ordering=("_event_lsn",),
        partial=PartialMode.FILL_UNAVAILABLE,
        unavailable="?",
        delete_field="op",
        delete_marker="d",
    )
    assert ruled(9, mode="EVENT_TIME_ORDERING", ordering="_event_bin_file, _event_pos").ordering == (
        "_event_bin_file",
        "_event_pos",
    )
    assert ruled(9, partial="IGNORE_DEFAULTS").partial is PartialMode.IGNORE_DEFAULTS
    assert ruled(9, partial="IGNORE_MARKERS").partial is PartialMode.FILL_UNAVAILABLE
    assert ruled(9, partial="FILL_UNAVAILABLE").unavailable == UNAVAILABLE
    assert ruled(8, partial="IGNORE_DEFAULTS").partial is PartialMode.NONE


def test_merge_rule_names_the_columns_it_compares() -> None:
    rule = MergeRule(mode=EVENT.mode, ordering=("a", "b"), delete_field="a", delete_marker="d")
    assert rule.columns() == ("a", "b")
    assert replace(rule, delete_field="op").columns() == ("a", "b", "op")
    assert replace(rule, mode=COMMIT.mode, delete_field="op").columns() == ("op",)
    assert pickle.loads(pickle.dumps(rule)) == rule


@pytest.mark.parametrize(
    ("version", "properties", "named"),
    [
        (9, {"mode": "CUSTOM", "payload": "com.example.Own"}, r"payload class com\.example\.Own"),
        (6, {"payload": "com.example.Own"}, r"payload class com\.example\.Own"),
        # Beside a custom merger the payload class has no effect.
        (
            8,
            {"mode": "CUSTOM", "strategy": "9b450e53", "payload": f"{MODEL}DefaultHoodieRecordPayload"},
            "merge strategy 9b450e53",
        ),
        (9, {"mode": "CUSTOM"}, "merge mode CUSTOM"),
        (9, {"mode": "SOMETHING"}, "merge mode SOMETHING"),
        (9, {"mode": "EVENT_TIME_ORDERING", "partial": "KEEP_VALUES"}, "partial.update.mode=KEEP_VALUES"),
    ],
)
def test_unsupported_merge_is_refused_when_records_are_merged(
    version: int, properties: dict[str, str], named: str
) -> None:
    config = versioned(version, **properties)
    with pytest.raises(UnsupportedError, match=named):
        require_mergeable(config)


def test_delete_field_without_marker_is_refused() -> None:
    for key in ("field", "marker"):
        for prefix in ("", "hoodie.record.merge.property."):
            with pytest.raises(UserError, match="declare both or neither"):
                ruled(9, **{f"{prefix}hoodie.payload.delete.{key}": "x"})


RULES = [
    COMMIT,
    replace(EVENT, ordering=("a", "b"), delete_field="op", delete_marker="D"),
    replace(EVENT, ordering=("a",), partial=PartialMode.IGNORE_DEFAULTS),
    replace(COMMIT, ordering=("a",), partial=PartialMode.FILL_UNAVAILABLE, unavailable="?"),
    MergeRule(mode=MergeMode.CUSTOM, ordering=("a",), merger="package.module:function"),
]


@pytest.mark.parametrize("rule", RULES)
def test_merge_properties_parse_to_the_declared_rule(rule: MergeRule) -> None:
    assert parse_merge_rule(merge_properties(rule, table_layout(9)), table_layout(9)) == rule
    raw = new_table_properties(
        name="t",
        layout=table_layout(9),
        keys=KeyConfig(generator=KeyGeneratorType.NON_PARTITION, record_key_fields=("id",)),
        create_schema=None,
        extra={},
        rule=rule,
    )
    config = parse_table_config(raw, "here", allowed_functions=("package.*",))
    read = replace(rule, merger_allowed=rule.merger is not None)
    assert (config.merge_rule, config.merge_mode, config.ordering_fields) == (read, rule.mode, rule.ordering)
    require_mergeable(config)


def test_unavailable_value_is_declared_under_the_name_of_each_reader() -> None:
    prefix = "hoodie.record.merge.property."
    for_hudi, for_hudi_rs = "hoodie.write.partial.update.unavailable.value", "partial.update.unavailable.value"
    raw = merge_properties(RULES[3], table_layout(9))
    assert raw[prefix + for_hudi] == raw[prefix + for_hudi_rs] == "?"


def test_version_eight_refuses_rules_without_property_by_name() -> None:
    for rule, what in zip(RULES[1:4], ("a delete marker", "IGNORE_DEFAULTS", "FILL_UNAVAILABLE"), strict=True):
        with pytest.raises(UnsupportedError, match=f"{what}.*version 9 can"):
            merge_properties(rule, table_layout(8))
    for rule in (COMMIT, replace(EVENT, ordering=("a",)), RULES[4]):
        assert parse_merge_rule(merge_properties(rule, table_layout(8)), table_layout(8)) == rule
    with pytest.raises(UnsupportedError, match="order by two columns"):
        merge_properties(replace(EVENT, ordering=("a",), by_parts=True), table_layout(9))
    with pytest.raises(UserError, match="needs a merger"):
        merge_properties(MergeRule(mode=MergeMode.CUSTOM), table_layout(9))


def test_custom_merger_has_its_own_strategy_id() -> None:
    first, other = merge_strategy_id("package.module:one"), merge_strategy_id("package.module:other")
    assert first == merge_strategy_id("package.module:one") != other
    assert (UUID(first).version, UUID(first).variant) == (5, RFC_4122)
    raw = merge_properties(RULES[4], table_layout(9))
    assert raw["hoodie.record.merge.mode"] == "CUSTOM"
    assert raw["hoodie.record.merge.strategy.id"] == merge_strategy_id("package.module:function")
    assert raw["hoodie.record.merge.property.lakehouse.merger"] == "package.module:function"
