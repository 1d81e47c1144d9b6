"""The TIMESTAMP key generator: units, zones, patterns. Joda-Time printed the expected texts."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from lakehouse.core.rows.joda_patterns import ParsedTime, compile_pattern, parse, render
from lakehouse.core.rows.timestamp_keys import timestamp_texts, zone_id
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.keys import TimestampFormat

HOURLY = TimestampFormat(output_format="yyyy/MM/dd/HH")
STRINGS = TimestampFormat(
    type="DATE_STRING", input_formats=("yyyy-MM-dd'T'HH:mm:ss.SSSZ", "yyyyMMddHHmmss"), output_format="yyyy-MM-dd HH"
)


def texts(
    values: list[object], settings: TimestampFormat, kind: pa.DataType | None = None, *, consistent: bool = False
) -> list[str | None]:
    found = timestamp_texts(pa.array(values, kind), settings, name="t", consistent_timestamps=consistent)
    return found.dictionary.take(found.indices).to_pylist()


@pytest.mark.parametrize(
    ("kind", "unit", "number"),
    [
        ("UNIX_TIMESTAMP", "", 1_705_489_200),
        ("EPOCHMILLISECONDS", "", 1_705_489_200_000),
        ("EPOCHMICROSECONDS", "", 1_705_489_200_000_000),
        ("SCALAR", "hours", 473_747),
        ("SCALAR", "minutes", 28_424_820),
        ("SCALAR", "nanoseconds", 1_705_489_200_000_000_000),
        ("MIXED", "seconds", 1_705_489_200),
    ],
)
def test_numbers_count_in_the_unit_of_their_type(kind: str, unit: str, number: int) -> None:
    settings = replace(HOURLY, type=kind, scalar_unit=unit)
    assert texts([number, number], settings) == ["2024/01/17/11"] * 2


def test_null_number_is_one_unit_after_the_epoch() -> None:
    assert texts([None, 0], HOURLY, pa.int64()) == ["1970/01/01/00"] * 2
    days = TimestampFormat(type="SCALAR", scalar_unit="days")
    assert texts([None, 19739], days, pa.int64()) == ["1970-01-02", "2024-01-17"]


def test_floats_and_decimals_are_truncated_to_whole_numbers() -> None:
    seconds = replace(HOURLY, type="UNIX_TIMESTAMP")
    assert texts([1_705_489_200.9, float("nan")], seconds) == ["2024/01/17/11", "1970/01/01/00"]
    assert texts([Decimal("1705489200.9")], seconds, pa.decimal128(15, 1)) == ["2024/01/17/11"]


def test_dates_count_days_in_the_configured_unit() -> None:
    assert texts([date(2024, 1, 17)], TimestampFormat(type="SCALAR", scalar_unit="days")) == ["2024-01-17"]
    assert texts([date(2024, 1, 17)], TimestampFormat()) == ["1970-01-01"]


def test_timestamps_count_as_epoch_numbers_or_as_instants() -> None:
    noon = datetime(2024, 1, 17, 11, 0, 0, 1)
    assert texts([noon], replace(HOURLY, type="EPOCHMICROSECONDS"), pa.timestamp("us")) == ["2024/01/17/11"]
    assert texts([noon, None], HOURLY, pa.timestamp("us"), consistent=True) == ["2024/01/17/11", "1970/01/01/00"]


def test_times_are_written_in_the_output_zone() -> None:
    at = [1_720_051_200_000, 1_704_067_200_000]
    assert texts(at, replace(HOURLY, output_timezone="Asia/Kolkata")) == ["2024/07/04/05", "2024/01/01/05"]
    assert texts(at, replace(HOURLY, output_timezone="Europe/Berlin")) == ["2024/07/04/02", "2024/01/01/01"]
    assert texts(at, replace(HOURLY, output_timezone="GMT+8:00")) == ["2024/07/04/08", "2024/01/01/08"]


def test_daylight_saving_time_continues_after_2037() -> None:
    berlin = replace(HOURLY, output_timezone="Europe/Berlin")
    assert texts([2_642_375_127_466, 3_708_906_559_286], berlin) == ["2053/09/25/03", "2087/07/13/05"]


def test_pattern_with_the_zone_distinguishes_the_two_hours_of_autumn() -> None:
    settings = TimestampFormat(output_format="HH z Z", output_timezone="America/New_York")
    assert texts([1_730_610_000_000, 1_730_613_600_000], settings) == ["01 EDT -0400", "01 EST -0500"]


def test_strings_are_parsed_with_the_first_format_that_fits() -> None:
    values = ["2023-04-01T12:01:00.123Z", "2023-04-01T01:30:00.000+05:30", "20230401120100"]
    assert texts(values, STRINGS) == ["2023-04-01 12", "2023-03-31 20", "2023-04-01 12"]


def test_strings_that_are_no_time_have_no_text() -> None:
    assert texts(["2023-02-30T00:00:00.000Z", "", "x", "20230401120100x"], STRINGS) == [None] * 4


def test_null_string_is_one_millisecond_after_the_epoch_in_the_first_format() -> None:
    assert texts([None, "20230401120100"], STRINGS, pa.string()) == ["1970-01-01 00", "2023-04-01 12"]
    assert texts([None], replace(STRINGS, output_timezone="Asia/Kolkata"), pa.string()) == ["1970-01-01 05"]


def test_string_without_zone_is_in_the_input_zone() -> None:
    assert texts(["20230701000000"], replace(STRINGS, input_timezone="Europe/Berlin")) == ["2023-06-30 22"]


def test_local_time_that_the_clocks_skip_has_no_text() -> None:
    assert texts(["20230326023000", "20230326033000"], replace(STRINGS, input_timezone="Europe/Berlin")) == [
        None,
        "2023-03-26 01",
    ]


def test_string_keeps_its_zone_without_output_zone() -> None:
    settings = replace(STRINGS, output_timezone="")
    assert texts(["2023-04-01T01:30:00.000+05:30", "20230401120100"], settings) == ["2023-04-01 01", "2023-04-01 12"]
    berlin = replace(settings, input_timezone="Europe/Berlin")
    assert texts(["2023-04-01T01:30:00.000+05:30"], berlin) == ["2023-03-31 22"]


def test_many_distinct_strings_give_the_same_texts_as_few() -> None:
    start = 1_680_350_460
    stamps = pa.array(range(start, start + 30_000)).cast(pa.timestamp("s")).cast(pa.string()).to_pylist()
    values = [stamp.replace(" ", "T") + ".5+0530" for stamp in stamps] + ["2023-04-01T12:01:75.000Z"]
    settings = replace(STRINGS, input_formats=("yyyy-MM-dd'T'HH:mm:ss.SZ",), output_format="yyyyMMddHHmm")
    many = texts(values, settings)
    assert many[-1] is None
    assert many[:-1] == [text for i in range(0, 30_000, 5_000) for text in texts(values[i : i + 5_000], settings)]


@pytest.mark.parametrize(
    ("settings", "values", "message"),
    [
        (TimestampFormat(type="EPOCHMILIS"), [1], "unknown. Did you mean 'EPOCHMILLISECONDS'?"),
        (TimestampFormat(type="SCALAR", scalar_unit="day"), [1], "unknown. Did you mean 'days'?"),
        (TimestampFormat(type="DATE_STRING", input_formats=("yyyy",)), [1], "DATE_STRING parses strings"),
        (TimestampFormat(type="DATE_STRING"), ["x"], "needs an input format"),
        (TimestampFormat(), ["x"], "needs numbers; use DATE_STRING"),
        (TimestampFormat(), [True], "column 't' of type bool cannot contain times"),
        (TimestampFormat(output_timezone="Europe/Berln"), [1], "time zone 'Europe/Berln' is unknown"),
        (TimestampFormat(output_format="yyyy'T"), [1], "quote at position 4 is not closed"),
    ],
)
def test_invalid_settings_are_refused_by_name(settings: TimestampFormat, values: list[object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        texts(values, settings)
    assert message in caught.value.message


def test_unsupported_pattern_letter_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"'ww' is not supported; letters are y Y M d"):
        compile_pattern("xx-ww".replace("xx", "yyyy"))


def test_zone_ids_of_java_are_supported() -> None:
    assert [zone_id(text) for text in ("", "GMT", "GMT+8", "UTC-05:30", "+0530", "GMT+0", "IST", "Europe/Berlin")] == [
        "UTC",
        "UTC",
        "+08:00",
        "-05:30",
        "+05:30",
        "UTC",
        "Asia/Kolkata",
        "Europe/Berlin",
    ]


AT = 1_709_212_805_067  # 2024-02-29T13:20:05.067Z, a Thursday


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        ("yyyy-MM-dd'T'HH:mm:ss.SSSZ", "2024-02-29T13:20:05.067+0000"),
        ("EEE, d MMM yyyy h:m:s a", "Thu, 29 Feb 2024 1:20:5 PM"),
        ("EEEE dd MMMM yy", "Thursday 29 February 24"),
        ("hh 'o''clock' S SSSSSS ZZ z", "01 o'clock 0 067000 +00:00 UTC"),
        ("YYYY.M''y", "2024.2'2024"),
    ],
)
def test_patterns_print_as_in_joda(pattern: str, text: str) -> None:
    assert render(compile_pattern(pattern), AT) == text


@pytest.mark.parametrize(
    ("pattern", "text", "local_ms", "zone"),
    [
        ("yyyy-MM-dd", "2024-2-9", 1_707_436_800_000, None),
        ("yyyyMMdd", "20240209", 1_707_436_800_000, None),
        ("MM/dd", "01/02", 946_771_200_000, None),
        ("HH:mm", "01:30", 5_400_000, None),
        ("hh a", "12 am", 0, None),
        ("yy", "49", 2_493_072_000_000, None),
        ("yyyy-MM-dd HH:mm:ss z", "1970-01-01 00:00:00 EST", 0, "America/New_York"),
        ("d MMM yyyy HHZ", "1 january 1970 00-03", 0, "-03:00"),
    ],
)
def test_patterns_parse_as_in_joda(pattern: str, text: str, local_ms: int, zone: str | None) -> None:
    assert parse(compile_pattern(pattern), text) == ParsedTime(local_ms=local_ms, zone=zone)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [("yyyy-MM-dd", "2024-13-01"), ("HH:mm", "24:00"), ("EEE d MMM yyyy", "Fri 29 Feb 2024"), ("yyyyMMdd", "202402")],
)
def test_texts_that_are_no_time_parse_to_none(pattern: str, text: str) -> None:
    assert parse(compile_pattern(pattern), text) is None
