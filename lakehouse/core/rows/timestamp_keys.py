"""Partition paths of the TIMESTAMP key generator (DATA-2.4).

Numbers, dates, timestamps or strings become instants, and instants become strings in the output pattern and zone. Only
distinct strings are formatted: numbers are first truncated to the step of the pattern.

    epoch numbers --unit--> UTC ms --zone--> local ms --truncate to the pattern's step--> distinct --> text
    strings --distinct--> parsed with the first pattern that fits ---^

A null counts as the number 1 in the configured unit, and for strings as one millisecond after the epoch, so it is in a
partition of 1970. Years outside 1 to 9999 are refused, because they result from a wrong unit.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.nanoseconds import is_nanos, to_micros
from lakehouse.core.rows.joda_patterns import (
    DAY_MS,
    MINUTE_MS,
    SECOND_MS,
    JodaPattern,
    ParsedTime,
    Token,
    compile_pattern,
    offset_text,
    parse,
    render,
)
from lakehouse.core.rows.key_values import epoch_numbers, flat
from lakehouse.errors import UserError, nearest
from lakehouse.model.keys import TimestampFormat

Millis = npt.NDArray[np.int64]

_UNIT_NS = {
    "nanoseconds": 1,
    "microseconds": 1_000,
    "milliseconds": 1_000_000,
    "seconds": 1_000_000_000,
    "minutes": 60_000_000_000,
    "hours": 3_600_000_000_000,
    "days": 86_400_000_000_000,
}
_UNIT_OF_TYPE = {
    "UNIX_TIMESTAMP": "seconds",
    "EPOCHMILLISECONDS": "milliseconds",
    "EPOCHMICROSECONDS": "microseconds",
}
_STRING_TYPES = ("DATE_STRING", "MIXED")
_TYPES = (*_UNIT_OF_TYPE, "SCALAR", *_STRING_TYPES)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Limits one day inside years 1 to 9999, so that no time zone moves a time out of these years.
_FIRST_MS, _LAST_MS = -62135596800000 + DAY_MS, 253402300799999 - DAY_MS
# Zone ids of Java's TimeZone that are missing in the zone database.
_JAVA_ZONES = {
    "PST": "America/Los_Angeles",
    "CST": "America/Chicago",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "CTT": "Asia/Shanghai",
}
_FIXED_ZONE = re.compile(r"(?:GMT|UTC)?([+-])(\d{1,2})(?::?(\d{2}))?")
# Arrow has no daylight saving time after 2037. It reads the listed transitions of a zone, not the rule after them.
_ARROW_RULES_END_MS = 2114380800000
# The rules for those years change clocks at full quarters of an hour.
_LATE_STEP_MS = 900_000
# Number of distinct strings above which truncating their seconds first is faster than parsing all of them.
_MANY = 20_000


def timestamp_texts(
    values: pa.Array, timestamp: TimestampFormat, *, name: str, consistent_timestamps: bool = False
) -> pa.DictionaryArray:
    """Return the partition string for each value, dictionary-encoded; a value that is not a time has a null entry.

    Timestamps count as their epoch number in the configured unit, as in Hudi, or as instants with
    `consistent_timestamps`. Dates count as their number of days in the configured unit.

    Raises UserError for invalid settings, patterns or zones, or an unsupported type of column `name`.
    """
    if timestamp.type not in _TYPES:
        raise UserError(
            f"timestamp type {timestamp.type!r} is unknown.{nearest(timestamp.type, _TYPES)} Types: {', '.join(_TYPES)}"
        )
    output = compile_pattern(timestamp.output_format)
    if _is_text(values.type):
        return _texts_of_strings(values, timestamp, output, name)
    zone = zone_id(timestamp.output_timezone)
    if consistent_timestamps and pa.types.is_timestamp(values.type):
        utc = pa.timestamp("us", "UTC")
        moments = to_micros(flat(values), utc) if is_nanos(values.type) else values.cast(utc)
        micros = pc.fill_null(moments.cast(pa.int64()), SECOND_MS)
        return _texts(micros.to_numpy() // 1_000, output, zone)
    return _texts(_millis(_whole_numbers(values, name), _unit(timestamp, name)), output, zone)


@lru_cache(maxsize=256)
def zone_id(text: str) -> str:
    """Return a Java zone id as `UTC`, `+HH:MM` or a name of the zone database. Raises UserError if it is invalid."""
    if text.upper() in ("", "UTC", "GMT", "Z", "UT"):
        return "UTC"
    fixed = _FIXED_ZONE.fullmatch(text)
    if fixed and int(fixed[2]) < 24:
        minutes = int(fixed[2]) * 60 + int(fixed[3] or 0)
        return offset_text(minutes * MINUTE_MS * (-1 if fixed[1] == "-" else 1)) if minutes else "UTC"
    name = _JAVA_ZONES.get(text, text)
    try:
        return ZoneInfo(name).key
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UserError(
            f"time zone {text!r} is unknown; use a name like Europe/Berlin, UTC or GMT+8", zone=text
        ) from error


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _unit(timestamp: TimestampFormat, name: str) -> str:
    if timestamp.type == "DATE_STRING":
        raise UserError(
            f"column {name!r} holds no strings, but timestamp type DATE_STRING parses strings; "
            f"use {', '.join(_UNIT_OF_TYPE)} or SCALAR",
            column=name,
        )
    unit = _UNIT_OF_TYPE.get(timestamp.type, timestamp.scalar_unit.lower())
    if unit not in _UNIT_NS:
        raise UserError(f"time unit {unit!r} is unknown.{nearest(unit, _UNIT_NS)} Units: {', '.join(_UNIT_NS)}")
    return unit


def _whole_numbers(values: pa.Array, name: str) -> pa.Array:
    """Return the values as int64, as Java's `longValue` does; null is 1."""
    types, kind = pa.types, values.type
    if types.is_timestamp(kind):
        numbers = epoch_numbers(values)
    elif types.is_date(kind):
        numbers = values.cast(pa.date32()).cast(pa.int32())
    elif types.is_floating(kind):
        finite = pc.if_else(pc.is_finite(values), values, 0.0)
        numbers = pc.trunc(finite)
    elif types.is_decimal(kind):
        numbers = pc.trunc(values)
    elif types.is_integer(kind) or types.is_null(kind):
        numbers = values
    else:
        raise UserError(
            f"column {name!r} of type {kind} cannot contain times; use numbers, dates, timestamps or strings"
        )
    try:
        return pc.fill_null(numbers.cast(pa.int64()), 1)
    except pa.ArrowInvalid as error:
        raise UserError(f"column {name!r} holds numbers beyond 64 bits, which are not times", column=name) from error


def _millis(numbers: pa.Array, unit: str) -> Millis:
    """Return numbers of `unit` as milliseconds. Overflowing numbers are limited to a time after the last year."""
    amounts = numbers.to_numpy(zero_copy_only=False).astype(np.int64)
    factor, divisor = max(_UNIT_NS[unit] // 1_000_000, 1), max(1_000_000 // _UNIT_NS[unit], 1)
    # Java's TimeUnit truncates towards zero.
    whole = np.sign(amounts) * (np.abs(amounts) // divisor) if divisor > 1 else amounts
    limit = _LAST_MS // factor + 1
    millis: Millis = np.clip(whole, -limit, limit) * factor
    return millis


def _texts(millis: Millis, output: JodaPattern, zone: str) -> pa.DictionaryArray:
    """Return the string for each instant in `zone`, dictionary-encoded."""
    outside = (millis < _FIRST_MS) | (millis > _LAST_MS)
    millis = np.where(outside, 0, millis)
    step = output.granularity_ms
    # If the zone is printed, the same local time may have two strings, twice a year.
    codes = millis if output.shows_zone else _local(millis, zone) // step
    encoded = pc.dictionary_encode(pa.array(codes, mask=outside), null_encoding="encode")
    distinct_codes = pc.fill_null(encoded.dictionary, 0).to_numpy(zero_copy_only=False)
    local = _local(distinct_codes, zone) if output.shows_zone else distinct_codes * step
    texts = [
        render(output, at, offset_ms=at - code, zone_name=_zone_name(code, zone) if output.shows_zone else "")
        for at, code in zip(local.tolist(), distinct_codes.tolist(), strict=True)
    ]
    distinct = pa.array(texts, pa.string(), mask=np.asarray(encoded.dictionary.is_null()))
    return pa.DictionaryArray.from_arrays(encoded.indices, distinct)


def _local(millis: Millis, zone: str) -> Millis:
    """Return UTC milliseconds as local milliseconds of `zone`."""
    if zone == "UTC":
        return millis
    instants = pa.array(millis).cast(pa.timestamp("ms", zone))
    local: Millis = pc.local_timestamp(instants).cast(pa.int64()).to_numpy(zero_copy_only=False).copy()
    late = np.flatnonzero(millis >= _ARROW_RULES_END_MS)
    if len(late) and zone[0] not in "+-":
        steps, inverse = np.unique(millis[late] // _LATE_STEP_MS, return_inverse=True)
        info = ZoneInfo(zone)
        moments = [(_EPOCH + timedelta(milliseconds=step * _LATE_STEP_MS)).astimezone(info) for step in steps.tolist()]
        offsets = np.array([(moment.utcoffset() or timedelta()) // timedelta(milliseconds=1) for moment in moments])
        local[late] = millis[late] + offsets[inverse]
    return local


def _zone_name(millis: int, zone: str) -> str:
    if zone == "UTC" or zone[0] in "+-":
        return zone
    return (_EPOCH + timedelta(milliseconds=millis)).astimezone(ZoneInfo(zone)).tzname() or zone


def _texts_of_strings(
    values: pa.Array, timestamp: TimestampFormat, output: JodaPattern, name: str
) -> pa.DictionaryArray:
    if timestamp.type not in _STRING_TYPES:
        raise UserError(
            f"column {name!r} holds strings, but timestamp type {timestamp.type} needs numbers; use DATE_STRING "
            "with an input format",
            column=name,
        )
    if not timestamp.input_formats:
        raise UserError(
            f"timestamp type {timestamp.type} needs an input format (hoodie.keygen.timebased.input.dateformat)"
        )
    inputs = [compile_pattern(text) for text in timestamp.input_formats]
    filled = pc.fill_null(values.cast(pa.string()), _null_text(timestamp, inputs[0]))
    encoded = _distinct(filled, timestamp, inputs, output)
    parsed = [_parse_any(inputs, text) for text in encoded.dictionary.to_pylist()]
    texts = _texts_of_parsed(parsed, timestamp, output)
    return pa.DictionaryArray.from_arrays(texts.indices.take(encoded.indices), texts.dictionary)


def _null_text(timestamp: TimestampFormat, pattern: JodaPattern) -> str:
    """Return the string for a null: 1 ms after the epoch in the first input format."""
    zone = zone_id(timestamp.input_timezone or timestamp.output_timezone)
    local = int(_local(np.array([1]), zone)[0])
    return render(pattern, local, offset_ms=local - 1, zone_name=_zone_name(1, zone))


def _parse_any(inputs: list[JodaPattern], text: str) -> ParsedTime | None:
    return next((time for pattern in inputs if (time := parse(pattern, text)) is not None), None)


def _texts_of_parsed(
    parsed: list[ParsedTime | None], timestamp: TimestampFormat, output: JodaPattern
) -> pa.DictionaryArray:
    """Return the strings for parsed times. Without an output zone each time keeps its own zone."""
    default = zone_id(timestamp.input_timezone)
    zones = [default if time is None else time.zone or default for time in parsed]
    millis = [_to_utc(time.local_ms, zone) if time else None for time, zone in zip(parsed, zones, strict=True)]
    # A local time that does not exist is moved out of range, so that it has no string.
    instants = np.array([_LAST_MS + 1 if at is None else at for at in millis], dtype=np.int64)
    if timestamp.output_timezone:
        return _texts(instants, output, zone_id(timestamp.output_timezone))
    if timestamp.input_timezone:
        return _texts(instants, output, default)
    texts = np.full(len(parsed), None, dtype=object)
    of_zone = np.array(zones, dtype=object)
    for zone in dict.fromkeys(zones):
        here = of_zone == zone
        rendered = _texts(instants[here], output, zone)
        texts[here] = rendered.dictionary.take(rendered.indices).to_pylist()
    return pc.dictionary_encode(pa.array(texts.tolist(), pa.string()), null_encoding="encode")


def _to_utc(local_ms: int, zone: str) -> int | None:
    """Return the instant of a local time.

    If there are two, return the earlier one; None for a time that the clocks skip.
    """
    if zone == "UTC":
        return local_ms
    fixed = _FIXED_ZONE.fullmatch(zone)
    if fixed:
        minutes = int(fixed[2]) * 60 + int(fixed[3] or 0)
        return local_ms - minutes * MINUTE_MS * (-1 if fixed[1] == "-" else 1)
    if not _FIRST_MS <= local_ms <= _LAST_MS:
        return None
    info = ZoneInfo(zone)
    naive = (_EPOCH + timedelta(milliseconds=local_ms)).replace(tzinfo=None)
    instant = naive.replace(tzinfo=info).astimezone(UTC)
    if instant.astimezone(info).replace(tzinfo=None) != naive:
        return None
    return (instant - _EPOCH) // timedelta(milliseconds=1)


def _distinct(
    values: pa.Array, timestamp: TimestampFormat, inputs: list[JodaPattern], output: JodaPattern
) -> pa.DictionaryArray:
    """Return the distinct strings. If there are many, their seconds become zero if the output does not print them.

    Some zones of the zone database had offsets with seconds, so this is done for fixed zones only.
    """
    encoded = pc.dictionary_encode(values)
    zones = (zone_id(timestamp.input_timezone), zone_id(timestamp.output_timezone))
    is_fixed = all(zone == "UTC" or zone[0] in "+-" for zone in zones)
    if len(encoded.dictionary) < _MANY or not is_fixed or output.granularity_ms < MINUTE_MS:
        return encoded
    cut = encoded.dictionary
    for pattern in inputs:
        substitution = _without_seconds(pattern)
        if substitution:
            cut = pc.replace_substring_regex(cut, *substitution)
    again = pc.dictionary_encode(cut)
    return pa.DictionaryArray.from_arrays(again.indices.take(encoded.indices), again.dictionary)


def _without_seconds(pattern: JodaPattern) -> tuple[str, str] | None:
    """Return a regular expression and its replacement that set seconds and fraction of complete times to zero."""
    expression, replacement, prefix, groups = "", "", "", 0
    for token in (*pattern.tokens, Token(letter="")):
        if not token.letter:
            prefix += re.escape(token.literal)
        elif token.letter == "Z":
            prefix += "(?:Z|[+-][0-9:]+)"
        elif not token.is_number:
            return None
        elif token.letter not in "sS":
            prefix += f"[0-9]{{{max(token.count, 2)}}}"
        else:
            groups += 1
            digits = "[0-5][0-9]" if token.letter == "s" else f"[0-9]{{{token.count}}}"
            expression += f"({prefix}){digits}"
            replacement += f"\\{groups}" + "0" * (2 if token.letter == "s" else token.count)
            prefix = ""
    return (f"^{expression}({prefix})$", f"{replacement}\\{groups + 1}") if groups else None
