"""Infer types of string columns, such as in CSV, and the reader options that type as many columns as possible.

An option is chosen only if a value requires it: `12,50` is a number in `de-DE`, but not in `en-US`. It is not chosen if
another column would lose its type.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal

from lakehouse.platform.suggest.sample import NULL_TEXTS, SampledColumn, shown
from lakehouse.platform.suggest.text_types import (
    LOCALES,
    NUMBER,
    STRING,
    TEMPORAL,
    TextRules,
    common_kinds,
    number_in_sql,
    text_kinds,
    text_type,
)
from lakehouse.platform.suggest.time_patterns import DATE_PATTERNS, TIMESTAMP_PATTERNS, patterns_of

#: Epoch milliseconds and seconds between 2000 and 2100.
_EPOCHS = {"milliseconds": 1000, "seconds": 1}
#: Decimal digits that a double always preserves.
_DOUBLE_DIGITS = 17
_FROM, _TO = 946_684_800, 4_102_444_800
_TIME_WORDS = ("time", "date", "_at", "ts", "epoch", "created", "updated", "modified")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextColumns:
    """The typed columns of a sample, and the reader options for these types."""

    columns: tuple[SampledColumn, ...]
    rules: TextRules
    notes: tuple[str, ...] = ()

    @property
    def options(self) -> dict[str, str]:
        """The Spark reader options."""
        named = {
            "nullValue": self.rules.null_text,
            "locale": self.rules.locale,
            "dateFormat": self.rules.date_format,
            "timestampFormat": self.rules.timestamp_format,
        }
        return {name: text for name, text in named.items() if text}


def typed_columns(names: Sequence[str], texts: Sequence[Sequence[str | None]]) -> TextColumns:
    """Infer column types from strings; return the columns and the reader options that these types need.

    Args:
        names: The column names.
        texts: For each column, the strings of all rows: None for an empty value, an empty string for a quoted one.
    """
    counts = [Counter(text for text in column if text is not None) for column in texts]
    rules = _with_null_text(counts)
    rules = _with_locale(counts, rules)
    rules = _with_patterns(counts, rules)
    columns = tuple(
        _column(name, column, count, rules) for name, column, count in zip(names, texts, counts, strict=True)
    )
    return TextColumns(columns=columns, rules=rules, notes=_notes(names, counts, rules))


def _values(count: Counter[str], rules: TextRules) -> list[str]:
    return [text for text in count if not rules.is_null(text)]


def _is_typed(count: Counter[str], rules: TextRules) -> bool:
    """Return whether a column has values, and all of them have a narrower type than string."""
    values = _values(count, rules)
    return bool(values) and common_kinds(values, rules) != STRING


def _typed(counts: Iterable[Counter[str]], rules: TextRules) -> frozenset[int]:
    return frozenset(number for number, count in enumerate(counts) if _is_typed(count, rules))


def _with_null_text(counts: Sequence[Counter[str]]) -> TextRules:
    """Return the rules with the null value, if any, that types as many columns as possible."""
    plain = TextRules()
    votes: Counter[str] = Counter()
    for count in counts:
        present = [text for text in NULL_TEXTS if text in count]
        if not present or _is_typed(count, plain):
            continue
        others = [text for text in count if text not in NULL_TEXTS]
        loose = [text for text in others if _is_value(text)]
        if others and len(loose) == len(others):
            for text in present:
                votes[text] += count[text]
    before = _typed(counts, plain)
    for text, _ in votes.most_common():
        changed = replace(plain, null_text=text)
        # With a null value, an empty value in quotes is no longer null.
        if before < _typed(counts, changed):
            return changed
    return plain


def _is_value(text: str) -> bool:
    """Return whether a string is a number or a time in any notation."""
    return (
        text_kinds(text, TextRules()) != STRING
        or any(number_in_sql(text, locale) is not None for locale in LOCALES)
        or bool(patterns_of((text,), (*DATE_PATTERNS, *TIMESTAMP_PATTERNS)))
    )


def _with_locale(counts: Sequence[Counter[str]], rules: TextRules) -> TextRules:
    before = _typed(counts, rules)
    for locale in LOCALES:
        localized = replace(rules, locale=locale)
        after = _typed(counts, localized)
        gained = after - before
        if gained and before <= after and any(_proves(counts[number], localized) for number in gained):
            return localized
    return rules


def _proves(count: Counter[str], rules: TextRules) -> bool:
    """Return whether any column value is a number only in the locale of the rules."""
    others = [locale for locale in LOCALES if locale != rules.locale]
    return any(
        number_in_sql(text, rules.locale) is not None and all(number_in_sql(text, other) is None for other in others)
        for text in _values(count, rules)
    )


def _with_patterns(counts: Sequence[Counter[str]], rules: TextRules) -> TextRules:
    for name, patterns in (("date_format", DATE_PATTERNS), ("timestamp_format", TIMESTAMP_PATTERNS)):
        before = _typed(counts, rules)
        fitting: Counter[str] = Counter()
        for number, count in enumerate(counts):
            possible = patterns_of(_values(count, rules), patterns) if number not in before else ()
            # 01/02/2026 is in January or February: only a value with a day after the 12th is unambiguous.
            fitting.update(possible if len(possible) == 1 else ())
        for pattern, _ in fitting.most_common(1):
            changed = replace(rules, date_format=pattern) if name == "date_format" else _with_times(rules, pattern)
            rules = changed if before <= _typed(counts, changed) else rules
    return rules


def _with_times(rules: TextRules, pattern: str) -> TextRules:
    return replace(rules, timestamp_format=pattern)


def _column(name: str, texts: Sequence[str | None], count: Counter[str], rules: TextRules) -> SampledColumn:
    values = _values(count, rules)
    kind = text_type(values, rules)
    if kind == "double":
        notes = _rounded_note(values, rules)
    else:
        notes = _string_notes(values, count, rules) if kind == "string" else _epoch_notes(name, values, kind, rules)
    patterns = patterns_of(values, (*DATE_PATTERNS, *TIMESTAMP_PATTERNS)) if kind == "string" else ()
    return SampledColumn(
        name=name,
        type=kind,
        values=[_value(text, kind, rules) for text in texts],
        notes=notes,
        time_format=patterns[0] if len(patterns) == 1 else "",
    )


def _value(text: str | None, kind: str, rules: TextRules) -> str | None:
    """Return a string, in SQL notation if it is a number, or None if it is null."""
    if rules.is_null(text):
        return None
    return number_in_sql(text or "", rules.locale) or text if kind != "string" else text


def _string_notes(values: Sequence[str], count: Counter[str], rules: TextRules) -> tuple[str, ...]:
    if not values:
        return ("no value in the sample",)
    leading = next((text for text in values if text.isdigit() and text.startswith("0") and len(text) > 1), None)
    if leading is not None and all(text.isdigit() for text in values):
        return (f"digits with leading zeros, such as {shown(leading)}",)
    patterns = patterns_of(values, (*DATE_PATTERNS, *TIMESTAMP_PATTERNS))
    if len(patterns) > 1:
        return (f"times as {' or '.join(patterns)}: the sample does not decide which",)
    if patterns:
        return (f"times as {patterns[0]}, which another column does not have",)
    if not rules.locale and all(_is_ambiguous(text) for text in values):
        return (
            f"not sure: numbers whose comma may separate thousands or a fraction, such as {shown(values[0])}: with "
            "options: {locale: en-US} or {locale: de-DE} and the type int or double they are numbers",
        )
    return _mixed_notes(values, count, rules)


def _is_ambiguous(text: str) -> bool:
    return all(number_in_sql(text, locale) is not None for locale in LOCALES)


def _rounded_note(values: Sequence[str], rules: TextRules) -> tuple[str, ...]:
    """Return a note if a double column contains numbers with more digits than a double preserves."""
    numbers = [number_in_sql(text, rules.locale) for text in values]
    changed = next((number for number in numbers if number is not None and _is_rounded(number)), None)
    if changed is None:
        return ()
    return (f"a double rounds numbers such as {shown(changed)}; write decimal(38,18) or string to keep all digits",)


def _is_rounded(number: str) -> bool:
    digits = re.sub(r"[eE].*|[^0-9]", "", number).lstrip("0")
    return len(digits) > _DOUBLE_DIGITS and Decimal(repr(float(number))) != Decimal(number.strip())


def _mixed_notes(values: Sequence[str], count: Counter[str], rules: TextRules) -> tuple[str, ...]:
    """Return a note if at least half of a string column's values have a narrower type."""
    groups: dict[str, list[str]] = {}
    for text in values:
        groups.setdefault(_group(text, rules), []).append(text)
    total = sum(count[text] for text in values)
    narrow = sum(count[text] for group, texts in groups.items() if group != "texts" for text in texts)
    if len(groups) == 1 or narrow * 2 < total:
        return ()
    parts = [
        f"{sum(count[text] for text in texts):,} {group} such as {shown(texts[0], 20)}"
        for group, texts in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]
    return (f"mixed: {', '.join(parts[:4])}",)


def _group(text: str, rules: TextRules) -> str:
    kinds = text_kinds(text, rules)
    if kinds & NUMBER:
        return "numbers"
    if kinds & TEMPORAL:
        return "ISO dates or times"
    patterns = patterns_of((text,), (*DATE_PATTERNS, *TIMESTAMP_PATTERNS))
    if patterns:
        return f"texts as {patterns[0]}"
    return "numbers with a comma" if any(number_in_sql(text, locale) for locale in LOCALES) else "texts"


def _epoch_notes(name: str, values: Sequence[str], kind: str, rules: TextRules) -> tuple[str, ...]:
    if kind not in ("int", "bigint"):
        return ()
    return epoch_notes(name, [int(number_in_sql(text, rules.locale) or text) for text in values])


def epoch_unit(name: str, values: Iterable[int]) -> str:
    """Return `milliseconds` or `seconds` if integers are probably times since 1970; else an empty string."""
    numbers = list(values)
    if not numbers or not any(word in name.lower() for word in _TIME_WORDS):
        return ""
    low, high = min(numbers), max(numbers)
    return next((unit for unit, scale in _EPOCHS.items() if _FROM * scale <= low <= high < _TO * scale), "")


def epoch_notes(name: str, values: Iterable[int]) -> tuple[str, ...]:
    """Return a note about an integer column that probably contains times since 1970."""
    numbers = list(values)
    unit = epoch_unit(name, numbers)
    if not unit:
        return ()
    low, high = (datetime.fromtimestamp(end / _EPOCHS[unit], UTC) for end in (min(numbers), max(numbers)))
    function = "timestamp_millis" if unit == "milliseconds" else "timestamp_seconds"
    return (
        f"probably epoch {unit}: {low:%Y-%m-%d %H:%M} to {high:%Y-%m-%d %H:%M}; as a time: "
        f'select: ["*", "{function}({name}) AS {name}_time"]',
    )


def _notes(names: Sequence[str], counts: Sequence[Counter[str]], rules: TextRules) -> tuple[str, ...]:
    notes: list[str] = []
    spaced = [name for name, count in zip(names, counts, strict=True) if any(text != text.strip() for text in count)]
    if spaced:
        notes.append(
            f"strings of {_listed(spaced)} have space around them, which is kept; to remove it write options: "
            "{ignoreLeadingWhiteSpace: 'true', ignoreTrailingWhiteSpace: 'true'}"
        )
    if rules.null_text:
        with_text = [name for name, count in zip(names, counts, strict=True) if rules.null_text in count]
        notes.append(f"nullValue: {shown(rules.null_text)} means no value in {_listed(with_text)}")
    others: Mapping[str, list[str]] = {
        text: [name for name, count in zip(names, counts, strict=True) if text in count]
        for text in NULL_TEXTS
        if text != rules.null_text
    }
    notes += [
        f"{shown(text)} occurs in {_listed(columns)}; if it means no value, {_remedy(columns[0], text, rules)}"
        for text, columns in others.items()
        if columns and not all(_is_typed(counts[list(names).index(name)], rules) for name in columns)
    ]
    return tuple(notes)


def _remedy(column: str, text: str, rules: TextRules) -> str:
    if not rules.null_text:
        return f"write options: {{nullValue: {shown(text)}}}"
    return f"write nullif({column}, {shown(text)}) AS {column} in 'select', because the reader has one nullValue"


def _listed(names: Sequence[str], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{rest}"
