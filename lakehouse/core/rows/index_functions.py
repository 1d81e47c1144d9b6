"""The functions of expression indexes, evaluated on whole columns exactly as Spark does (MDT-4).

An index stores bounds or bloom filters of `function(column)`. Other engines prune with these values, so a function is
listed here only if its results equal Spark's results for all values of the accepted types, or if it is known which
values have another result: for these `evaluate` raises NoValuesError. Times are taken in UTC: sessions of Spark that
share a table with an index on a function that depends on the zone need the session time zone UTC.

A condition on rows may use the same functions. There a value always has a result, except for years that do not have
four digits, and for strings that Spark parses by other rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.rows.result_values import (
    NoValuesError,
    Pattern,
    check_extracted,
    check_replaced,
    extracted,
    moved_days,
    replaced,
    substring,
    to_days,
    to_seconds,
    to_times,
)
from lakehouse.errors import UserError, nearest

#: Options of an index definition: the name of the function, and arguments.
EXPRESSION, FORMAT, CHARACTERS = "expr", "format", "trimString"
POSITION, LENGTH, DAYS, PATTERN, GROUP_NUMBER, REPLACEMENT = "pos", "len", "days", "pattern", "idx", "replacement"
_NUMBERS = frozenset((POSITION, LENGTH, DAYS, GROUP_NUMBER))
#: Options of an index with bloom filters. They decide the size of a filter, not its content.
FILTER_OPTIONS = ("filtertype", "numentries", "fpp", "maxentries")
_WHOLE = re.compile(r"[+-]?[0-9]{1,10}")
_DEFAULT_FORMAT = "yyyy-MM-dd HH:mm:ss"
#: Functions of Hudi that cannot be used for an index.
_WITHOUT_BOUNDS = {"split": "a list of strings"}
#: Spark's pattern letters that have the same meaning in `strftime`, from years down to fractions.
_UNITS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}
_PATTERN = re.compile(r"(?P<unit>yyyy|MM|dd|HH|mm|ss)|'(?P<quoted>[^']*)'|(?P<literal>[^A-Za-z'%\[\]{}#])")
#: Years that Spark prints with four digits.
_FIRST_YEAR, _LAST_YEAR = 1, 9999

#: Characters whose case mapping is the same in all versions of Unicode that engines use: Latin, Greek, Cyrillic, and
#: scripts and symbols without case. Unicode 16 gave letters of other ranges an upper case.
_SETTLED_CASE = (
    r"^[\x00-\x{17F}\x{386}-\x{3CE}\x{400}-\x{45F}\x{5D0}-\x{5EA}\x{621}-\x{64A}\x{2000}-\x{206F}\x{20A0}-\x{20BF}"
    r"\x{3000}-\x{312F}\x{3400}-\x{4DBF}\x{4E00}-\x{9FFF}\x{AC00}-\x{D7A3}\x{1F300}-\x{1FAFF}]*$"
)

#: A `pa.Array` or `pa.ChunkedArray`.
Values: TypeAlias = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFunction:
    """A function of one column.

    Attributes:
        name: Name in Spark SQL, lower case.
        options: The options of the index definition.
        keeps_order: a <= b implies function(a) <= function(b).
    """

    name: str
    options: Mapping[str, str]
    keeps_order: bool

    @property
    def arguments(self) -> tuple[tuple[str, str], ...]:
        """The options that change the result, in the order of a call; those with the default value are left out."""
        names = [name for name in _FUNCTIONS[self.name].parameters if name in self.options]
        if self.name in ("from_unixtime", "unix_timestamp") and self.options.get(FORMAT) == _DEFAULT_FORMAT:
            names.remove(FORMAT)
        return tuple((name, self.options[name]) for name in names)

    @property
    def is_known_to_hudi(self) -> bool:
        """Whether Apache Hudi can maintain an index on this function."""
        return self.name in _OF_HUDI

    def evaluate(self, values: Values) -> Values:
        """Return the function of each value; null for null.

        Raises NoValuesError for values that the function cannot represent, such as a year with five digits, and for
        those whose result depends on the engine.
        """
        declared = _FUNCTIONS[self.name]
        if declared.has_settled_case and not is_settled(values):
            raise NoValuesError(f"the case of a letter in the argument of {self.name} depends on the engine")
        return declared.evaluate(values, self.options)

    def of_rows(self, values: Values) -> Values:
        """Return the function of each value; null for null.

        Raises UserError for values that the function cannot represent.
        """
        try:
            return _FUNCTIONS[self.name].evaluate(values, self.options)
        except NoValuesError as error:
            raise UserError(f"{self.name} has no result for some rows: {error}", function=self.name) from error

    def result_type(self, kind: pa.DataType) -> pa.DataType:
        """Return the type of the results for a column that the function accepts."""
        return _FUNCTIONS[self.name].evaluate(pa.array([], kind), self.options).type

    def is_doubtful(self, literal: Any) -> bool:
        """Return whether engines may compute different results for rows with this result.

        Stored values are then not used.
        """
        return _FUNCTIONS[self.name].has_settled_case and not is_settled(pa.array([literal], pa.string()))

    def depends_on_zone(self, kind: pa.DataType) -> bool:
        """Return whether the results for a column of this type depend on the time zone of the session."""
        return _FUNCTIONS[self.name].depends_on_zone(kind)

    def refusal(self, kind: pa.DataType) -> str | None:
        """Return why the function cannot be evaluated on a column of this type, or None if it can."""
        declared = _FUNCTIONS[self.name]
        if declared.accepts(kind):
            return None
        return f"the function {self.name} takes {declared.takes}, and the column has the type {kind}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Function:
    evaluate: Callable[[Any, Mapping[str, str]], Any]
    accepts: Callable[[pa.DataType], bool]
    takes: str
    keeps_order: bool = False
    has_format: bool = False
    has_settled_case: bool = False
    check: Callable[[Mapping[str, str]], None] = lambda _: None
    depends_on_zone: Callable[[pa.DataType], bool] = lambda _: False
    parameters: tuple[str, ...] = ()
    #: Number of parameters without a default.
    required: int = 0


def index_function(name: str, options: Mapping[str, str]) -> IndexFunction:
    """Return the function in an index definition.

    Raises UserError for an unknown function or option (with similar names), for a missing one, and for an unsupported
    value.
    """
    declared = _FUNCTIONS.get(name.lower())
    if name.lower() in _WITHOUT_BOUNDS:
        raise UserError(
            f"the function {name!r} of an expression index gives {_WITHOUT_BOUNDS[name.lower()]}, which has no bounds",
            function=name,
        )
    if declared is None:
        raise UserError(
            f"the function {name!r} of an expression index is unknown.{nearest(name.lower(), _FUNCTIONS)} Known: "
            f"{', '.join(_FUNCTIONS)}",
            function=name,
        )
    allowed = (EXPRESSION, *declared.parameters, *FILTER_OPTIONS)
    unknown = next((option for option in options if option not in allowed), None)
    if unknown is not None:
        raise UserError(
            f"the function {name!r} of an expression index has no option {unknown!r}.{nearest(unknown, allowed)} "
            f"Options: {', '.join(declared.parameters) or 'none'}",
            function=name,
        )
    missing = next((option for option in declared.parameters[: declared.required] if option not in options), None)
    if missing is not None:
        raise UserError(
            f"the function {name!r} of an expression index has no {missing!r}. Its form is {_form(name, declared)}",
            function=name,
        )
    checked = {key: _number(key, text) if key in _NUMBERS else text for key, text in options.items()}
    ordered = declared.keeps_order
    if declared.has_format:
        units = _units(options.get(FORMAT, _DEFAULT_FORMAT))
        # The string has the order of time if its units descend without gaps from the year.
        ordered = units == list(_UNITS)[: len(units)]
    declared.check(checked)
    return IndexFunction(name=name.lower(), options=checked, keeps_order=ordered)


def called_function(name: str, arguments: Sequence[str]) -> IndexFunction:
    """Return the function of a call with the arguments after the column, in order.

    Raises UserError for an unknown function, and for arguments that it does not have.
    """
    declared = _FUNCTIONS.get(name.lower())
    parameters = () if declared is None else declared.parameters
    if declared is not None and len(arguments) > len(parameters):
        raise UserError(
            f"the function {name!r} has the form {_form(name, declared)}; found {len(arguments)} more", function=name
        )
    return index_function(name, dict(zip(parameters, arguments, strict=False)))


def _form(name: str, function: _Function) -> str:
    return f"{name}(column{''.join(f', {parameter}' for parameter in function.parameters)})"


def _number(option: str, text: str) -> str:
    """Parse a 32-bit integer."""
    number = int(text) if _WHOLE.fullmatch(text) else 2**31
    if not -(2**31) <= number < 2**31:
        raise UserError(f"option {option!r} of an expression index: {text!r} is not a whole number", option=option)
    return str(number)


def functions_of_hudi() -> tuple[str, ...]:
    """Return the names of the functions whose indexes Apache Hudi can maintain, too."""
    return tuple(name for name in _FUNCTIONS if name in _OF_HUDI)


def is_settled(texts: Values) -> bool:
    """Return whether all engines convert these strings to the same upper and lower case."""
    array = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    others = array.filter(pc.invert(pc.string_is_ascii(array)))
    return bool(pc.all(pc.match_substring_regex(others, _SETTLED_CASE), min_count=0).as_py())


def function_names() -> tuple[str, ...]:
    """Return the names of all functions."""
    return tuple(_FUNCTIONS)


def _units(pattern: str) -> list[str]:
    """Return the units of a pattern in order; raise UserError for a pattern with other letters."""
    position, units = 0, []
    while position < len(pattern):
        match = _PATTERN.match(pattern, position)
        if match is None or (match["quoted"] == "" or "%" in (match["quoted"] or "")):
            raise UserError(
                f"format {pattern!r} of an expression index: {pattern[position:]!r} is not supported; supported are "
                f"{', '.join(_UNITS)}, punctuation and 'quoted text'",
                format=pattern,
            )
        if match["unit"]:
            units.append(match["unit"])
        position = match.end()
    return units


def _parts(pattern: str) -> Pattern:
    """Return the units and literals of a pattern."""
    return [(match["unit"] or "", match["quoted"] or match["literal"] or "") for match in _PATTERN.finditer(pattern)]


def _strftime(pattern: str) -> str:
    return _PATTERN.sub(lambda match: _UNITS.get(match["unit"] or "", match["quoted"] or match["literal"]), pattern)


def _formatted(values: Any, options: Mapping[str, str]) -> Any:
    bounds = pc.min_max(pc.year(values))
    low, high = bounds["min"].as_py(), bounds["max"].as_py()
    if low is not None and not _FIRST_YEAR <= low <= high <= _LAST_YEAR:
        raise NoValuesError(f"years {low} to {high} have no text of four digits")
    if pa.types.is_date(values.type):
        values = values.cast(pa.timestamp("s"))
    seconds = pc.floor_temporal(values, unit="second").cast(pa.timestamp("s", values.type.tz))
    return pc.strftime(seconds, format=_strftime(options.get(FORMAT, _DEFAULT_FORMAT)))


def _from_unixtime(values: Any, options: Mapping[str, str]) -> Any:
    try:
        moments = values.cast(pa.int64()).cast(pa.timestamp("s"))
        return _formatted(moments, options)
    except pa.ArrowInvalid as error:
        raise NoValuesError(str(error)) from error


def _cased(fast: Callable[[Any], Any], slow: Callable[[str], str]) -> Callable[[Any, Mapping[str, str]], Any]:
    def evaluate(values: Any, _: Mapping[str, str]) -> Any:
        array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        encoded = array.dictionary_encode()
        distinct = encoded.dictionary
        plain = pc.string_is_ascii(distinct)
        if not pc.all(plain).as_py():
            # Arrow maps one character to one; Java and Python map some to several. The loop is over distinct strings.
            others = distinct.filter(pc.invert(plain))
            mapped = pa.array([slow(text) for text in others.to_pylist()], distinct.type)
            return pc.replace_with_mask(fast(distinct), pc.invert(plain), mapped).take(encoded.indices)
        return fast(distinct).take(encoded.indices)

    return evaluate


def _part(compute: Callable[[Any], Any]) -> Callable[[Any, Mapping[str, str]], Any]:
    return lambda values, _: compute(values).cast(pa.int32())


def _is_time(kind: pa.DataType) -> bool:
    # Spark evaluates times with a zone in its session time zone; only UTC gives the same result everywhere.
    return bool(pa.types.is_timestamp(kind)) and kind.tz in (None, "UTC")


def _always(_: pa.DataType) -> bool:
    return True


def _is_day(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind)) or _is_time(kind)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_plain(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_dictionary(kind))


def _days(compute: Callable[[Any], Any], *, keeps_order: bool = False) -> _Function:
    return _Function(
        evaluate=_part(compute),
        accepts=_is_day,
        takes=_DAYS_TEXT,
        keeps_order=keeps_order,
        depends_on_zone=pa.types.is_timestamp,
    )


def _times(compute: Callable[[Any], Any]) -> _Function:
    return _Function(evaluate=_part(compute), accepts=_is_time, takes="timestamps", depends_on_zone=_always)


def _texts(evaluate: Callable[[Any, Mapping[str, str]], Any]) -> _Function:
    return _Function(evaluate=evaluate, accepts=_is_text, takes="texts")


def _case(fast: Callable[[Any], Any], slow: Callable[[str], str]) -> _Function:
    return _Function(evaluate=_cased(fast, slow), accepts=_is_text, takes="texts", has_settled_case=True)


def _trimmed(compute: Callable[..., Any]) -> _Function:
    return _Function(
        evaluate=lambda values, options: compute(values, characters=options.get(CHARACTERS, " ")),
        accepts=_is_text,
        takes="texts",
        parameters=(CHARACTERS,),
    )


def _moved(sign: int) -> _Function:
    return _Function(
        evaluate=lambda values, options: moved_days(values, sign * int(options[DAYS])),
        accepts=_is_day,
        takes=_DAYS_TEXT,
        depends_on_zone=pa.types.is_timestamp,
        parameters=(DAYS,),
        required=1,
    )


def _parsed(evaluate: Callable[[Any, Pattern | None], Any], is_free: Callable[[pa.DataType], bool]) -> _Function:
    """Return a function of days, times and strings; `is_free` tells for which types it ignores the zone."""

    def of_options(values: Any, options: Mapping[str, str]) -> Any:
        # A cast parses without a pattern, and only strings are parsed.
        return evaluate(values, _parts(options[FORMAT]) if FORMAT in options else None)

    return _Function(
        evaluate=of_options,
        accepts=lambda kind: _is_day(kind) or _is_text(kind),
        takes="dates, timestamps and texts",
        check=lambda options: _check_parsed(options.get(FORMAT, _DEFAULT_FORMAT)),
        depends_on_zone=lambda kind: not is_free(kind),
        parameters=(FORMAT,),
    )


def _check_parsed(pattern: str) -> None:
    """Raise UserError for a pattern that does not determine a time."""
    units = _units(pattern)
    if "yyyy" not in units or len(units) != len(set(units)) or not _parts(pattern)[0][0]:
        raise UserError(
            f"format {pattern!r} of an expression index: to parse texts it begins with a unit, has the year, and has "
            "each unit once",
            format=pattern,
        )


_DAYS_TEXT = "dates and timestamps"
_DAY = _days(pc.day)
_FUNCTIONS: Mapping[str, _Function] = {
    "identity": _Function(
        evaluate=lambda values, _: values, accepts=_is_plain, takes="columns without nested values", keeps_order=True
    ),
    "lower": _case(pc.ascii_lower, str.lower),
    "upper": _case(pc.ascii_upper, str.upper),
    "trim": _trimmed(pc.utf8_trim),
    "ltrim": _trimmed(pc.utf8_ltrim),
    "rtrim": _trimmed(pc.utf8_rtrim),
    "length": _texts(_part(pc.utf8_length)),
    "year": _days(pc.year, keeps_order=True),
    "quarter": _days(pc.quarter),
    "month": _days(pc.month),
    "day": _DAY,
    "dayofmonth": _DAY,
    "dayofyear": _days(pc.day_of_year),
    # Sunday is 1.
    "dayofweek": _days(lambda values: pc.day_of_week(values, count_from_zero=False, week_start=7)),
    "weekofyear": _days(pc.iso_week),
    "hour": _times(pc.hour),
    "minute": _times(pc.minute),
    "second": _times(pc.second),
    "date_format": _Function(
        evaluate=_formatted,
        accepts=_is_day,
        takes=_DAYS_TEXT,
        has_format=True,
        depends_on_zone=_always,
        parameters=(FORMAT,),
    ),
    "from_unixtime": _Function(
        evaluate=_from_unixtime,
        accepts=pa.types.is_integer,
        takes="whole numbers of seconds",
        has_format=True,
        depends_on_zone=_always,
        parameters=(FORMAT,),
    ),
    "date_add": _moved(1),
    "date_sub": _moved(-1),
    "to_date": _parsed(to_days, lambda kind: not pa.types.is_timestamp(kind)),
    "to_timestamp": _parsed(to_times, pa.types.is_timestamp),
    "unix_timestamp": _parsed(
        lambda values, pattern: to_seconds(values, pattern or _parts(_DEFAULT_FORMAT)), pa.types.is_timestamp
    ),
    "substring": _Function(
        evaluate=lambda values, options: substring(values, int(options[POSITION]), int(options[LENGTH])),
        accepts=_is_text,
        takes="texts",
        parameters=(POSITION, LENGTH),
        required=2,
    ),
    "regexp_extract": _Function(
        evaluate=lambda values, options: extracted(values, options[PATTERN], int(options[GROUP_NUMBER])),
        accepts=_is_text,
        takes="texts",
        check=lambda options: check_extracted(options[PATTERN], int(options[GROUP_NUMBER])),
        parameters=(PATTERN, GROUP_NUMBER),
        required=2,
    ),
    "regexp_replace": _Function(
        evaluate=lambda values, options: replaced(values, options[PATTERN], options[REPLACEMENT]),
        accepts=_is_text,
        takes="texts",
        check=lambda options: check_replaced(options[PATTERN], options[REPLACEMENT]),
        parameters=(PATTERN, REPLACEMENT),
        required=2,
    ),
}
#: Functions whose indexes Apache Hudi can maintain, too.
_OF_HUDI = frozenset(_FUNCTIONS) - {
    "quarter", "dayofmonth", "dayofyear", "dayofweek", "weekofyear", "minute", "second",
}  # fmt: skip
