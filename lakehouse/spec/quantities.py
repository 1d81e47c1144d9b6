"""Parse and print durations and sizes such as `400d`, `36h`, `1d12h`, `5TB` and `512MiB`."""

from __future__ import annotations

import re

from lakehouse.errors import SettingError

_SECONDS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
_BYTES = {"": 1, "B": 1} | {
    f"{letter}{kind}": base ** (power + 1)
    for power, letter in enumerate("KMGTP")
    for kind, base in (("B", 1000), ("iB", 1024))
}
_PARTS = re.compile(r"(?:[0-9]{1,12}[wdhms])+")
#: The maximum duration, 1,000 years. A time that far before or after now is still a valid date.
LONGEST_YEARS = 1_000
LONGEST_S = LONGEST_YEARS * 365 * 86_400
LONGEST_DAYS, LONGEST_HOURS = LONGEST_S // 86_400, LONGEST_S // 3_600
#: The maximum of Hudi's int options, and of its long options.
LARGEST_INT, LARGEST_LONG = 2**31 - 1, 2**63 - 1
_COUNT, _SHOWN = re.compile(r"[0-9]{1,20}"), 40
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)\s*([A-Za-z]*)")


def parse_duration(name: str, text: str) -> int:
    """Parse a duration to seconds; raise SettingError with `name` if the value is not valid.

    Months and years are not supported, because their lengths differ.
    """
    plain = text.strip().lower().replace(" ", "")
    if not _PARTS.fullmatch(plain):
        raise SettingError(
            f"{name}={text!r} is not a duration; write numbers with units w, d, h, m or s, such as 400d, 36h or 1d12h",
            setting=name,
        )
    seconds = sum(int(number) * _SECONDS[unit] for number, unit in re.findall(r"([0-9]+)([wdhms])", plain))
    if seconds > LONGEST_S:
        raise SettingError(
            f"{name}={text!r} is longer than {LONGEST_YEARS:,} years, so no date can be computed with it; write "
            f"{LONGEST_DAYS}d or less",
            setting=name,
        )
    return seconds


def parse_size(name: str, text: str) -> int:
    """Parse a size to bytes. kB to PB are powers of 1000, KiB to PiB are powers of 1024, and a bare number is bytes.

    Raises SettingError with `name` if the value is not valid.
    """
    match = _SIZE.fullmatch(text.strip())
    units = {unit.lower(): factor for unit, factor in _BYTES.items()}
    if match is None or match[2].lower() not in units:
        raise SettingError(
            f"{name}={text!r} is not a size; write a number with one of B, kB, MB, GB, TB, PB (thousands) or KiB, MiB, "
            "GiB, TiB, PiB, such as 5TB or 512MiB",
            setting=name,
        )
    factor = units[match[2].lower()]
    size = int(match[1]) * factor if match[1].isdigit() else int(float(match[1]) * factor)
    if size > LARGEST_LONG:
        raise SettingError(f"{name}={text!r} is larger than {LARGEST_LONG} bytes; write 9000PB or less", setting=name)
    return size


def parse_count(name: str, text: str, *, least: int = 1, most: int = LARGEST_INT) -> int:
    """Return a whole number from `least` to `most`; raise SettingError with `name` for another value."""
    if not _COUNT.fullmatch(text) or not least <= int(text) <= most:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        raise SettingError(f"{name}={shown!r} is not a number from {least} to {most}", setting=name)
    return int(text)


def duration_text(seconds: float) -> str:
    """Format a duration in the largest unit in which it is at least 2."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if abs(seconds) >= 2 * size or (seconds and seconds % size == 0):
            return f"{seconds / size:.10g}{unit}" if seconds % size == 0 else f"{seconds / size:.1f}{unit}"
    return f"{seconds:.0f}s"


def size_text(size_bytes: float) -> str:
    """Return a size as a string, rounded to three digits, in units of thousands: `987 B`, `1.23 MB`, `45.6 GB`."""
    size, units = float(size_bytes), iter(("B", "kB", "MB", "GB", "TB"))
    unit = next(units)
    while abs(size) >= 999.5:
        size, unit = size / 1000, next(units, "PB")
        if unit == "PB":
            break
    digits = 0 if unit == "B" or abs(size) >= 99.95 else 1 if abs(size) >= 9.995 else 2
    return f"{size:.{digits}f} {unit}"
