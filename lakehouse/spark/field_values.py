"""Converts field strings into values, with Spark expressions.

A string is bad if its value does not represent the whole string. Spark's parsers accept more than the grammar of a
type: `12,50` is a decimal of 1250.00, `12D` a double, `2026-1` a date, `12:30` a time of the current day, and digits
beyond a scale are rounded. Fields are therefore parsed as strings, and each type has a grammar. A string is bad if it
is outside of the grammar, if the type does not hold its value exactly, or if clients cannot print the value (years
before 1 and after 9999).

    boolean                 true, false
    integers                digits with a sign
    decimal                 plain or scientific notation; digits beyond the scale are zeros
    float, double           as decimal, and NaN, Infinity; an integer is held exactly
    date                    2026-01-31; a time of day is midnight
    timestamp               a date, or a date with hours and minutes at least; at most six digits of a second
    timestamp_ntz           as timestamp, without a zone

A pattern in the options of the reader (`dateFormat`, `timestampFormat`) replaces the grammar of its type. The option
`locale` adds the separators of its numbers, of integers too: `1.000` is 1000 in `de-DE`.

Numbers, true and false in JSON are strings with the prefix `MARK`. This keeps their digits, and distinguishes the
string "1" from the number 1.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

#: The prefix of the string for a JSON number, true or false. It is not a printable character.
MARK = "\ufdd0"
_PATTERNS: dict[type[DataType], str] = {
    DateType: "dateformat",
    TimestampType: "timestampformat",
    TimestampNTZType: "timestampntzformat",
}
#: Options of the reader, in lower case, that are patterns of dates and times.
PATTERN_OPTIONS = tuple(_PATTERNS.values())
_INTEGERS = (ByteType, ShortType, IntegerType, LongType)
_TEMPORAL = (DateType, TimestampType, TimestampNTZType)
_NUMBERS = (*_INTEGERS, DecimalType, DoubleType, FloatType)
_CONVERTED = (*_NUMBERS, *_TEMPORAL, BooleanType)
#: The maximum number of digits with which the type represents every integer exactly.
_EXACT_DIGITS: dict[type[DataType], int] = {DoubleType: 15, FloatType: 7}
_NUMBER = r"^\s*[+-]?([0-9]+[.]?[0-9]*|[.][0-9]+)([eE][+-]?[0-9]+)?\s*\z"
#: Numbers in scientific notation with so few digits that a double represents each of them differently.
_SCIENTIFIC = r"^\s*[+-]?(?=[0-9.]{1,16}[eE])[0-9]*[.]?[0-9]*[eE][+-]?[0-9]{1,2}\s*\z"
_DAY = r"(?!0000)[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}"
_DATE = rf"^\s*{_DAY}([T ]00:00(:00([.]0+)?)?(Z|[+-]00:?00)?)?\s*\z"
_TIME = r"[T ][0-9]{1,2}:[0-9]{1,2}(:[0-9]{1,2}([.][0-9]{1,6}0*)?)?"
_ZONE = r" ?(Z|(UTC|GMT|UT)?([+-][0-9]{1,2}(:?[0-9]{2}(:?[0-9]{2})?)?)?|[A-Za-z]+(/[A-Za-z_+-]+)+)"
_LOCAL_TIMESTAMP = rf"^\s*{_DAY}({_TIME})?\s*\z"
_TIMESTAMP = rf"^\s*{_DAY}({_TIME}({_ZONE})?)?\s*\z"
_RANGES: dict[type[DataType], tuple[str, str]] = {
    DateType: ("DATE'0001-01-01'", "DATE'9999-12-31'"),
    TimestampType: ("TIMESTAMP'0001-01-01 00:00:00Z'", "TIMESTAMP'9999-12-31 23:59:59.999999Z'"),
    TimestampNTZType: ("TIMESTAMP_NTZ'0001-01-01 00:00:00'", "TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'"),
}
#: Strings for true and false in other systems.
_FLAGS = r"^\s*(t|f|y|n|yes|no|on|off|0|1)\s*\z"
#: Strings with zeros that a number would lose, such as postal codes and article numbers.
_LEADING_ZERO = r"^\s*[+-]?0[0-9]"
_SPECIAL = {"NaN": "NaN", "Infinity": "Infinity", "Inf": "Infinity", "INF": "Infinity", "+Infinity": "Infinity"}
_SPECIAL |= {"+INF": "Infinity", "-Infinity": "-Infinity", "-Inf": "-Infinity", "-INF": "-Infinity"}
_SHOWN = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRules:
    """How strings become values.

    Attributes:
        options: The options of the reader.
        is_json: Whether numbers, true and false have the prefix `MARK`.
        declared: The names, in lower case, of the columns whose types the spec declares.
        exact: The names, in lower case, of columns whose numbers must convert back to the same string: keys of an
            inferred type, because `007` and `7` are different keys.
        separators: The grouping and the decimal separator of the option `locale`; empty without it.
        is_strict: Whether fields are parsed as strings, and a value must represent its whole string. Otherwise Spark's
            parsers decide about values.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    is_json: bool = False
    declared: Collection[str] = ()
    exact: Collection[str] = ()
    separators: tuple[str, ...] = ()
    is_strict: bool = True

    def option(self, name: str, default: str = "") -> str:
        """Return the value of an option, whose name is in lower case."""
        return next((text for key, text in self.options.items() if key.lower() == name), default)

    def text_kind(self, kind: DataType) -> DataType:
        """Return the type with which values of a type are parsed: string for values that are converted later."""
        if not self.is_strict:
            return kind
        if isinstance(kind, StructType):
            return StructType([StructField(one.name, self.text_kind(one.dataType)) for one in kind])
        if isinstance(kind, ArrayType):
            return ArrayType(self.text_kind(kind.elementType))
        if isinstance(kind, MapType):
            return MapType(kind.keyType, self.text_kind(kind.valueType))
        return StringType() if isinstance(kind, _CONVERTED) and not self._has_pattern(kind) else kind

    def is_plain(self, kind: DataType) -> bool:
        """Return whether the parsed value of a column is the value itself."""
        return not self.is_strict or (not self.is_json and isinstance(kind, StringType))

    def parsed_text(self, text: str) -> str:
        """Return the SQL of the string that Spark's parser gets for a record."""
        return marked_json(text) if self.is_json and self.is_strict else text

    def value(self, text: str, kind: DataType) -> str:
        """Return the SQL of the value for the SQL of a parsed `text_kind` string; null if the string is bad."""
        if isinstance(kind, StructType):
            fields = ", ".join(
                f"{literal(one.name)}, {self.value(f'{text}.{quoted(one.name)}', one.dataType)}" for one in kind
            )
            return f"IF({text} IS NULL, NULL, named_struct({fields}))"
        if isinstance(kind, ArrayType):
            name = _variable(text)
            return f"transform({text}, {name} -> {self.value(name, kind.elementType)})"
        if isinstance(kind, MapType):
            name = _variable(text)
            return f"transform_values({text}, ({name}k, {name}) -> {self.value(name, kind.valueType)})"
        if isinstance(kind, StringType):
            return _unmarked(text) if self.is_json else text
        if self._has_pattern(kind):
            return _in_range(text, kind)
        if isinstance(kind, _INTEGERS):
            return f"try_cast({self.number(text)} AS {kind.simpleString()})"
        return self._converted(text, kind)

    def is_bad(self, text: str, value: str, kind: DataType) -> str:
        """Return the SQL of the condition that `value` does not represent its whole string, or "false"."""
        if isinstance(kind, StructType):
            parts = [
                self.is_bad(f"{text}.{quoted(one.name)}", f"{value}.{quoted(one.name)}", one.dataType) for one in kind
            ]
            return " OR ".join(f"({part})" for part in parts if part != "false") or "false"
        if isinstance(kind, ArrayType | MapType):
            inner = kind.elementType if isinstance(kind, ArrayType) else kind.valueType
            name = _variable(text)
            part = self.is_bad(f"{name}t", f"{name}v", inner)
            if part == "false":
                return part
            sides = (text, value) if isinstance(kind, ArrayType) else (f"map_values({text})", f"map_values({value})")
            zipped = f"zip_with({sides[0]}, {sides[1]}, ({name}t, {name}v) -> {part})"
            return f"coalesce(exists({zipped}, {name} -> {name}), false)"
        is_converted = isinstance(kind, _CONVERTED)
        return f"({text} IS NOT NULL AND {value} IS NULL)" if is_converted else "false"

    def problem(
        self, columns: Sequence[tuple[str, DataType]], text: Callable[[int], str], value: Callable[[int], str]
    ) -> str:
        """Return the SQL of the message about the first bad column of a record; null if there is none.

        Args:
            columns: The names and types of the columns.
            text: Returns the SQL of the parsed string in the column at a position.
            value: Returns the SQL of its value.
        """
        cases: list[str] = []
        for number, (name, kind) in enumerate(columns if self.is_strict else ()):
            bad = self.is_bad(text(number), value(number), kind)
            if bad != "false":
                cases.append(f"WHEN {bad} THEN {self._message(name, kind, text(number))}")
            is_inferred = name.lower() not in self.declared and name.lower() not in self.exact
            if is_inferred and not self.is_json and isinstance(kind, _NUMBERS):
                cases.append(
                    f"WHEN {matches(text(number), _LEADING_ZERO)} THEN {self._zeros(name, kind, text(number))}"
                )
            if name.lower() in self.exact and isinstance(kind, _NUMBERS):
                own = f"CAST({value(number)} AS STRING)"
                end = literal("; declare the type of the record key in 'schema' if both are the same key")
                start = literal(f"column {name!r}: ")
                message = f"concat({start}, {self._shown(text(number))}, ' would be the key ', {own}, {end})"
                cases.append(f"WHEN {own} <> {self._plain(text(number))} THEN {message}")
        return f"CASE {' '.join(cases)} END" if cases else "CAST(NULL AS STRING)"

    def _message(self, name: str, kind: DataType, text: str) -> str:
        is_nested = isinstance(kind, StructType | ArrayType | MapType)
        shown = self._shown(f"to_json({text})" if is_nested else text)
        origin = "declared" if name.lower() in self.declared else "inferred"
        middle = f" is not a value of the {origin} type {kind.simpleString()}; declare another type in 'schema'"
        parts = [literal(f"column {name!r}: "), shown, literal(middle)]
        if isinstance(kind, BooleanType):
            way_out = literal(f", such as string, and convert it in 'select': {name} IN ('t', 'yes', '1') AS {name}")
            parts.append(f"IF({matches(f'lower({self._plain(text)})', _FLAGS)}, {way_out}, {self._no_value(shown)})")
        elif not self.is_json:
            comma = literal(", or the locale of the numbers, such as options: {locale: de-DE}")
            parts.append(f"IF({matches(text, '^[0-9.]+,[0-9]+$')}, {comma}, {self._no_value(shown)})")
        return f"concat({', '.join(parts)})"

    def _no_value(self, shown: str) -> str:
        """Return the SQL of the advice for a string that means "no value", for which JSON has null."""
        return "''" if self.is_json else f"concat(', or options: {{nullValue: ', {shown}, '}} if it means no value')"

    def _zeros(self, name: str, kind: DataType, text: str) -> str:
        end = f" would lose its zeros in the inferred type {kind.simpleString()}; declare the column in 'schema'"
        return f"concat({literal(f'column {name!r}: ')}, {self._shown(text)}, {literal(end)})"

    def _shown(self, text: str) -> str:
        """Return the start of a string in quotes."""
        return f"concat(\"'\", left(replace(CAST({text} AS STRING), '{MARK}', ''), {_SHOWN}), \"'\")"

    def _converted(self, text: str, kind: DataType) -> str:
        if isinstance(kind, BooleanType):
            given = self._number(text) if self.is_json else f"lower(trim({text}))"
            return f"CASE {given} WHEN 'true' THEN true WHEN 'false' THEN false END"
        if isinstance(kind, DecimalType):
            return _decimal(self._localized(text), kind)
        if isinstance(kind, DateType):
            return f"CASE WHEN {matches(text, _DATE)} THEN try_cast({text} AS DATE) END"
        if isinstance(kind, TimestampNTZType):
            return f"CASE WHEN {matches(text, _LOCAL_TIMESTAMP)} THEN try_cast({text} AS TIMESTAMP_NTZ) END"
        if isinstance(kind, TimestampType):
            return self._timestamp(text)
        given = self.number(text)
        special = {**_SPECIAL, **self._own_special()}
        cases = " ".join(
            f"WHEN {literal(one)} THEN {kind.simpleString()}({literal(name)})" for one, name in special.items()
        )
        return f"CASE WHEN {is_exact(given, kind)} THEN try_cast({given} AS {kind.simpleString()}) " + (
            f"ELSE CASE {self._plain(text)} {cases} END END"
        )

    def _own_special(self) -> dict[str, str]:
        names = {"nanvalue": "NaN", "positiveinf": "Infinity", "negativeinf": "-Infinity"}
        return {self.option(key): name for key, name in names.items() if self.option(key)}

    def _timestamp(self, text: str) -> str:
        zone, value = self.option("timezone", "UTC"), f"try_cast({text} AS TIMESTAMP)"
        if zone.upper() not in ("UTC", "Z", "GMT"):
            # The time zone of the session is UTC.
            value = f"IF({matches(text, _LOCAL_TIMESTAMP)}, to_utc_timestamp({value}, {literal(zone)}), {value})"
        return f"CASE WHEN {matches(text, _TIMESTAMP)} THEN {_in_range(value, TimestampType())} END"

    def _has_pattern(self, kind: DataType) -> bool:
        name = _PATTERNS.get(type(kind))
        return name is not None and bool(self.option(name))

    def number(self, text: str) -> str:
        """Return the SQL of a number in SQL notation; null for a string that is no number of this format."""
        return self._number(text) if self.is_json else self._localized(text)

    def special(self, text: str) -> str:
        """Return the SQL of the condition that a string is NaN or infinite."""
        names = ", ".join(literal(name) for name in {**_SPECIAL, **self._own_special()})
        return f"{self._plain(text)} IN ({names})"

    def _plain(self, text: str) -> str:
        return f"ltrim('{MARK}', {text})" if self.is_json else text

    def _number(self, text: str) -> str:
        """Return the string of a number, null for a JSON string."""
        return f"IF(startswith({text}, '{MARK}'), substr({text}, 2), NULL)" if self.is_json else text

    def _localized(self, text: str) -> str:
        """Return the SQL that converts a number, or a string with a number, to SQL notation."""
        if not self.separators:
            return self._plain(text)
        grouping, point = (literal(one) for one in self.separators)
        digits, dot = (rf"\Q{one}\E" for one in self.separators)
        pattern = rf"^\s*[+-]?([0-9]+|[0-9]{{1,3}}({digits}[0-9]{{3}})+)({dot}[0-9]*)?\s*\z"
        own = f"IF({matches(text, pattern)}, replace(replace({text}, {grouping}, ''), {point}, '.'), NULL)"
        return f"IF(startswith({text}, '{MARK}'), substr({text}, 2), {own})" if self.is_json else own


def marked_json(text: str) -> str:
    r"""Return the SQL of a JSON string in which numbers, NaN, true and false are strings with the prefix `MARK`.

    Escapes are hidden first, so that a string ends at its next quote. The replacement puts a pair of control characters
    after each string and around each literal; the empty pairs are removed. A string with these characters is not JSON.
    """
    hidden = text
    escapes = {r"\\": "\x01\x01", r"\"": "\x02\x02", r"\'": "\x05\x05"}
    for escape, other in escapes.items():
        hidden = f"replace({hidden}, {literal(escape)}, '{other}')"
    pattern = r"(\"[^\"]*+\"|'[^']*+')|(?<![A-Za-z0-9_$.+-])(-?[0-9][0-9.eE+-]*+|true\b|false\b|NaN\b|[+-]?Infinity\b)"
    marked = f"regexp_replace({hidden}, {literal(pattern)}, '$1\x03$2\x04')"
    marked = f"replace(replace(replace({marked}, '\x03\x04', ''), '\x03', '\"{MARK}'), '\x04', '\"')"
    for escape, other in escapes.items():
        marked = f"replace({marked}, '{other}', {literal(escape)})"
    has_controls = matches(text, "[\x01-\x05]")
    return f"IF({has_controls}, {text}, {marked})"


def matches(text: str, pattern: str) -> str:
    """Return the SQL of the condition that a string matches a regular expression."""
    return f"({text} RLIKE {literal(pattern)})"


def is_exact(text: str, kind: DataType) -> str:
    """Return the condition that a string is a number which a float or double holds; a whole one exactly."""
    value = f"try_cast({text} AS {kind.simpleString()})"
    same = ", ".join(f"try_cast({value} AS {one}) = try_cast({text} AS {one})" for one in ("BIGINT", "DECIMAL(38,0)"))
    is_short = f"length({text}) <= {_EXACT_DIGITS[type(kind)]}"
    is_whole = f"({is_short} OR {matches(text, '[.eE]')} OR coalesce({same}, false))"
    is_number = f"abs({value}) < double('Infinity') AND ({value} <> 0 OR NOT {matches(text, '^[^eE]*[1-9]')})"
    return f"{matches(text, _NUMBER)} AND {is_whole} AND {is_number}"


def literal(text: str) -> str:
    """Return a string as an SQL literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def quoted(name: str) -> str:
    """Return a name as an identifier of SQL."""
    return "`" + name.replace("`", "``") + "`"


def _unmarked(text: str) -> str:
    inner = literal(f'"{MARK}([^"]*)"')
    return (
        f"CASE WHEN NOT contains({text}, '{MARK}') THEN {text} WHEN startswith({text}, '{MARK}') "
        f"THEN substr({text}, 2) ELSE regexp_replace({text}, {inner}, '$1') END"
    )


def _variable(text: str) -> str:
    """Return a name for a lambda variable that the surrounding SQL does not use."""
    return f"v{text.count('v')}_"


def _in_range(value: str, kind: DataType) -> str:
    bounds = _RANGES.get(type(kind))
    return value if bounds is None else f"IF({value} BETWEEN {bounds[0]} AND {bounds[1]}, {value}, NULL)"


def _decimal(text: str, kind: DecimalType) -> str:
    value = f"try_cast({text} AS {kind.simpleString()})"
    digits = f"[0-9]{{0,{kind.scale}}}0*"
    plain = rf"^\s*[+-]?([0-9]+([.]{digits})?|[.]{digits})\s*\z"
    is_same = f"try_cast({value} AS DOUBLE) = try_cast({text} AS DOUBLE)"
    return f"CASE WHEN {matches(text, plain)} OR ({matches(text, _SCIENTIFIC)} AND {is_same}) THEN {value} END"
