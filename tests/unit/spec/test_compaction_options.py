"""Options of compaction and of log files."""

from __future__ import annotations

import pytest

from lakehouse.errors import UserError
from lakehouse.spec.options.compaction import STRATEGIES, CompactionPolicy, LogPolicy
from lakehouse.spec.options.parser import parse_options

STRATEGY = "hoodie.compaction.strategy"


def test_defaults_are_those_of_hudi() -> None:
    policies = parse_options({})
    compaction = policies.compaction
    assert (compaction.max_delta_commits, compaction.max_delta_seconds, compaction.trigger) == (5, 3600, "NUM_COMMITS")
    assert (compaction.strategies, compaction.target_io_mb) == (("LogFileSizeBased",), 512_000)
    assert (compaction.log_bytes_threshold, compaction.log_files_threshold) == (0, 0)
    assert (compaction.target_partitions, compaction.log_blocks_threshold) == (10, 5)
    assert policies.log == LogPolicy(max_file_bytes=1 << 30, block_format="parquet", bucket_inserts="base")


@pytest.mark.parametrize("short", STRATEGIES)
def test_strategy_accepts_short_names_and_class_names_of_hudi(short: str) -> None:
    others = {"hoodie.compaction.partition.path.regex": "x"}
    full = f"org.apache.hudi.table.action.compact.strategy.{short}CompactionStrategy"
    for name in (short, short.lower(), full, f"{short}CompactionStrategy"):
        assert parse_options({STRATEGY: name, **others}).compaction.strategies == (short,)


def test_several_strategies_keep_their_order() -> None:
    chosen = parse_options({STRATEGY: "DayBased, LogFileNumBasedCompactionStrategy"}).compaction
    assert chosen.strategies == ("DayBased", "LogFileNumBased")
    assert chosen.strategy == "DayBased,LogFileNumBased"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({STRATEGY: "LogFileSizedBased"}, "'LogFileSizedBased' is not one of .* Did you mean 'LogFileSizeBased'"),
        ({STRATEGY: "DayBased,"}, "'' is not one of LogFileSizeBased"),
        ({STRATEGY: "PartitionRegexBased"}, "needs hoodie.compaction.partition.path.regex"),
        ({"hoodie.compaction.partition.path.regex": "("}, r"'\(' is not a regular expression"),
        ({"hoodie.compact.inline.trigger.strategy": "NUM_COMMIT"}, "Did you mean 'NUM_COMMITS'"),
        ({"hoodie.compact.inline.max.delta.commits": "-1"}, "must not be negative"),
        ({"hoodie.compact.inline.max.delta.comits": "1"}, "Did you mean 'hoodie.compact.inline.max.delta.commits'"),
        ({"lakehouse.bucket.inserts": "logs"}, "must be one of base, log. Did you mean 'log'"),
    ],
)
def test_invalid_value_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_options(options)


def test_avro_block_format_is_refused_with_the_reason() -> None:
    with pytest.raises(UserError) as raised:
        parse_options({"hoodie.logfile.data.block.format": "avro"})
    assert str(raised.value) == (
        "option hoodie.logfile.data.block.format='avro': must be parquet. "
        "Format of data blocks in log files. Avro blocks can be read but are not written."
    )


def test_overriding_one_key_keeps_the_others() -> None:
    table = parse_options({STRATEGY: "UnBounded", "hoodie.logfile.max.size": "9"})
    call = table.override({"hoodie.compact.inline.max.delta.commits": "2"})
    assert call.compaction == CompactionPolicy(strategy="UnBounded", max_delta_commits=2)
    assert call.log.max_file_bytes == 9
