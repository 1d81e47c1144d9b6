"""Convert MySQL binary JSON to strings as the server prints them: stored key order, separators `", "` and `": "`."""

from __future__ import annotations

import base64
import json
import struct
from decimal import Decimal

from lakehouse.errors import CorruptLogError

_OBJECTS, _ARRAYS, _LITERAL, _STRING, _OPAQUE = (0, 1), (2, 3), 4, 12, 15
_LITERALS = {0: "null", 1: "true", 2: "false"}
_NUMBERS = {5: "<h", 6: "<H", 7: "<i", 8: "<I", 9: "<q", 10: "<Q", 11: "<d"}
_DEEPEST = 100
#: Exponents for which the server prints a number without an exponent.
_SMALLEST_EXPONENT, _LARGEST_EXPONENT = -15, 14
_DECIMAL, _TIMESTAMP, _DATE, _TIME, _DATETIME = 246, 7, 10, 11, 12
_DIGIT_BYTES = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)


def json_text(data: bytes) -> str:
    """Return a JSON document as a string; raise CorruptLogError for invalid bytes.

    Rows from before the column was added have no bytes; the server prints null.
    """
    if not data:
        return "null"
    try:
        # Values do not share bytes, so a document contains fewer values than bytes.
        return _value(data[0], data[1:], 0, [len(data)])
    except (IndexError, struct.error, UnicodeDecodeError, KeyError) as error:
        raise CorruptLogError(f"a JSON document of {len(data)} bytes is damaged: {error}") from error


def _value(kind: int, data: bytes, depth: int, left: list[int]) -> str:
    left[0] -= 1
    if depth > _DEEPEST or left[0] < 0:
        raise CorruptLogError(f"a JSON document has more than {_DEEPEST} levels, or more values than bytes")
    if kind in _OBJECTS or kind in _ARRAYS:
        return _container(kind, data, depth, left)
    if kind == _LITERAL:
        return _LITERALS[data[0]]
    if kind in _NUMBERS:
        (number,) = struct.unpack_from(_NUMBERS[kind], data)
        return _double(number) if isinstance(number, float) else str(number)
    if kind == _STRING:
        return _quoted(_sized(data, 0))
    if kind == _OPAQUE:
        return _opaque(data[0], _sized(data, 1))
    raise CorruptLogError(f"a JSON document has a value of the unknown type {kind}")


def _container(kind: int, data: bytes, depth: int, left: list[int]) -> str:
    wide, is_object = kind & 1, kind in _OBJECTS
    width, form = (4, "<I") if wide else (2, "<H")
    count, size = (struct.unpack_from(form, data, width * n)[0] for n in range(2))
    if size > len(data):
        raise CorruptLogError(f"a JSON value of {size} bytes is in {len(data)}")
    keys = 2 * width
    values = keys + count * (width + 2) * is_object
    parts = []
    for n in range(count):
        place = values + n * (1 + width)
        inner = data[place]
        if inner == _LITERAL or inner in (5, 6) or (wide and inner in (7, 8)):
            text = _value(inner, data[place + 1 : place + 1 + width], depth + 1, left)
        else:
            (start,) = struct.unpack_from(form, data, place + 1)
            if not values <= start < size:
                raise CorruptLogError(f"a JSON value begins at byte {start} of {size}")
            text = _value(inner, data[start:size], depth + 1, left)
        if is_object:
            start, length = struct.unpack_from(form[0] + form[1] + "H", data, keys + n * (width + 2))
            key = data[start : start + length]
            if len(key) < length:
                raise CorruptLogError("a key of a JSON document is cut off")
            text = f"{_quoted(key)}: {text}"
        parts.append(text)
    return f"{{{', '.join(parts)}}}" if is_object else f"[{', '.join(parts)}]"


def _sized(data: bytes, place: int) -> bytes:
    """Return length-prefixed bytes; the length is encoded with seven bits per byte, little-endian."""
    size = shift = 0
    while True:
        byte = data[place]
        size |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if not byte & 0x80:
            break
        if shift > 28:
            raise CorruptLogError("a text of a JSON document has no length")
    content = data[place : place + size]
    if len(content) < size:
        raise CorruptLogError(f"a text of a JSON document has {len(content)} of {size} bytes")
    return content


def _quoted(raw: bytes) -> str:
    return json.dumps(raw.decode("utf-8"), ensure_ascii=False)


def _double(number: float) -> str:
    text = repr(number)
    if text in ("inf", "-inf", "nan"):
        raise CorruptLogError(f"a JSON document has the number {text}")
    exact = Decimal(text)
    if number and not _SMALLEST_EXPONENT <= exact.adjusted() <= _LARGEST_EXPONENT:
        # The server prints exponents without a plus and without zeros: 1e20, 1.5e-17.
        digits, exponent = "".join(map(str, exact.normalize().as_tuple().digits)), exact.adjusted()
        mantissa = digits[0] + (f".{digits[1:]}" if len(digits) > 1 else "")
        return f"{'-' if number < 0 else ''}{mantissa}e{exponent}"
    fixed = format(exact, "f")
    return fixed if "." in fixed else f"{fixed}.0"


def _opaque(kind: int, data: bytes) -> str:
    if kind == _DECIMAL:
        return _decimal(data[0], data[1], data[2:])
    if kind in (_DATE, _TIME, _DATETIME, _TIMESTAMP):
        return f'"{_time(kind, *struct.unpack_from("<q", data))}"'
    return f'"base64:type{kind}:{base64.b64encode(data).decode("ascii")}"'


def _decimal(precision: int, scale: int, data: bytes) -> str:
    whole = precision - scale
    counts = [whole % 9] * bool(whole % 9) + [9] * (whole // 9)
    fraction = [9] * (scale // 9) + [scale % 9] * bool(scale % 9)
    is_negative = not data[0] & 0x80
    plain = bytes(byte ^ (0xFF if is_negative else 0) for byte in data)
    plain = bytes([plain[0] ^ 0x80]) + plain[1:]
    place, texts = 0, []
    for group in (counts, fraction):
        text = ""
        for count in group:
            width = _DIGIT_BYTES[count]
            text += str(int.from_bytes(plain[place : place + width], "big")).zfill(count)
            place += width
        texts.append(text)
    if place > len(data):
        raise CorruptLogError("a decimal of a JSON document is cut off")
    sign = "-" if is_negative else ""
    return f"{sign}{texts[0].lstrip('0') or '0'}" + (f".{texts[1]}" if scale else "")


def _time(kind: int, packed: int) -> str:
    is_negative, size = packed < 0, abs(packed)
    clock, fraction = size >> 24, size & 0xFFFFFF
    if kind == _TIME:
        hour = clock >> 12 & 0x3FF
        text = f"{'-' if is_negative else ''}{hour:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}.{fraction:06d}"
        return text
    months = clock >> 22
    date = f"{months // 13:04d}-{months % 13:02d}-{clock >> 17 & 31:02d}"
    if kind == _DATE:
        return date
    return f"{date} {clock >> 12 & 31:02d}:{clock >> 6 & 63:02d}:{clock & 63:02d}.{fraction:06d}"
