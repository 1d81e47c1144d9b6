"""The time range that a partition path names."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from lakehouse.core.planning.partition_time import PartitionTime, partition_time
from lakehouse.errors import UserError
from lakehouse.model.keys import KeyConfig, KeyGeneratorType, TimestampFormat

PLAIN = KeyConfig(generator=KeyGeneratorType.SIMPLE, record_key_fields=("id",), partition_fields=("day",))
ENCODED = KeyConfig(
    generator=KeyGeneratorType.SIMPLE, record_key_fields=("id",), partition_fields=("day",), url_encode=True
)
HOURLY = KeyConfig(
    generator=KeyGeneratorType.TIMESTAMP,
    record_key_fields=("id",),
    partition_fields=("at",),
    partition_types=("TIMESTAMP",),
    timestamp=TimestampFormat(output_format="yyyy/MM/dd/HH", output_timezone="Asia/Tokyo"),
)
CUSTOM = KeyConfig(
    generator=KeyGeneratorType.CUSTOM,
    record_key_fields=("id",),
    partition_fields=("p", "at"),
    partition_types=("SIMPLE", "TIMESTAMP"),
    timestamp=TimestampFormat(output_format="yyyy-MM-dd"),
)


def utc(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def span(first: str, end: str, parent: str = "") -> PartitionTime:
    return PartitionTime(start_ms=utc(first), end_ms=utc(end), parent=parent)


@pytest.mark.parametrize(
    ("path", "pattern", "zone", "expected"),
    [
        ("day=2026-01-31", "", "", span("2026-01-31", "2026-02-01")),
        ("2026-01-31", "", "", span("2026-01-31", "2026-02-01")),
        ("region=eu/day=2026-01-31", "", "", span("2026-01-31", "2026-02-01", "region=eu")),
        ("day=2026-01-31/region=eu", "", "", span("2026-01-31", "2026-02-01", "region=eu")),
        ("2026/01/31", "", "", span("2026-01-31", "2026-02-01")),
        ("year=2026/month=01/day=31", "", "", span("2026-01-31", "2026-02-01")),
        ("year=2026/month=1/day=5", "yyyy/M/d", "", span("2026-01-05", "2026-01-06")),
        ("month=2026-12", "yyyy-MM", "", span("2026-12-01", "2027-01-01")),
        ("2026", "yyyy", "", span("2026-01-01", "2027-01-01")),
        ("hour=2026013107", "yyyyMMddHH", "", span("2026-01-31T07:00", "2026-01-31T08:00")),
        ("day=2026-01-31", "", "Europe/Berlin", span("2026-01-30T23:00", "2026-01-31T23:00")),
        # The day on which clocks go forward has 23 hours.
        ("day=2026-03-29", "", "Europe/Berlin", span("2026-03-28T23:00", "2026-03-29T22:00")),
        ("day=2026-01-31", "", "GMT+8", span("2026-01-30T16:00", "2026-01-31T16:00")),
        ("day=2026-01-31", "", "GMT-3", span("2026-01-31T03:00", "2026-02-01T03:00")),
        ("at=2026-01-31T05Z", "yyyy-MM-dd'T'HHZ", "Asia/Tokyo", span("2026-01-31T05:00", "2026-01-31T06:00")),
    ],
)
def test_partition_value_is_parsed_as_a_time_range(path: str, pattern: str, zone: str, expected: PartitionTime) -> None:
    assert partition_time(path, PLAIN, pattern=pattern, zone=zone) == expected


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("", ""),
        ("region=eu", ""),
        ("day=__HIVE_DEFAULT_PARTITION__", ""),
        ("day=20260131", ""),  # eight digits are ambiguous
        ("day=2026-1-5", ""),
        ("day=2026-02-30", ""),
        ("10/20/30", ""),
        ("day=2026-01-31-x", ""),
        ("9999", "yyyy"),
    ],
)
def test_partition_value_in_another_format_has_no_time(path: str, pattern: str) -> None:
    assert partition_time(path, PLAIN, pattern=pattern) is None


def test_timestamp_key_generator_defines_format_and_time_zone() -> None:
    assert partition_time("2026/01/31/07", HOURLY) == span("2026-01-30T22:00", "2026-01-30T23:00")
    assert partition_time("2026/01/31", HOURLY) is None
    assert partition_time("2026/01/31/07", HOURLY, zone="UTC") == span("2026-01-31T07:00", "2026-01-31T08:00")
    # The other partition field also looks like a date.
    assert partition_time("2020-05-05/2026-01-31", CUSTOM) == span("2026-01-31", "2026-02-01", "2020-05-05")


def test_url_encoded_partition_values_are_decoded() -> None:
    assert partition_time("day=2026%2F01%2F31", ENCODED) == span("2026-01-31", "2026-02-01")
    assert partition_time("year=2026/month=01", ENCODED, pattern="yyyy/MM") == span("2026-01-01", "2026-02-01")


@pytest.mark.parametrize(("pattern", "message"), [("MM-dd", "no year"), ("yyyy-QQ", "'QQ' is not supported")])
def test_pattern_without_a_year_or_with_unsupported_letters_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        partition_time("day=1", PLAIN, pattern=pattern)


def test_unknown_time_zone_is_refused() -> None:
    with pytest.raises(UserError, match="Mars"):
        partition_time("day=2026-01-31", PLAIN, zone="Mars/Olympus")
