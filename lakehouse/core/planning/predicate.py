"""Parse predicates and translate them to Arrow expressions; `ranges` evaluates them on column ranges.

Grammar: comparisons (= == != <> < <= > >=), IN (...), BETWEEN a AND b, IS [NOT] NULL, LIKE 'prefix%', NOT, AND, OR,
parentheses; literals are numbers, 'string', true, false, and DATE '...', TIMESTAMP '...' or TIME '...'. Names may be in
backquotes; `a.b` names the field `b` of the struct `a`. Instead of a column a condition may contain a function of one,
such as `hour(at)` or `from_unixtime(at, 'yyyy-MM-dd')`: the functions of `rows.index_functions`, with times in UTC.

Rows are compared as in Spark: literals exactly in the type of their column (see `literals`), NaN equals NaN and is
greater than all numbers, and -0.0 equals 0.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.planning.column_path import expression_of, path_of, type_of
from lakehouse.core.planning.literal_texts import MOST_DIGITS, parse_moment, parse_time
from lakehouse.core.planning.literals import typed_comparison, typed_list
from lakehouse.core.rows.index_functions import IndexFunction, called_function, index_function
from lakehouse.errors import UserError
from lakehouse.model.predicate import (
    And,
    Applied,
    Call,
    Comparison,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    StartsWith,
    TimeLiteral,
    calls_of,
    columns_of,
)

_TOKEN = re.compile(
    r"\s*(?:(?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)|(?P<text>'(?:[^']|'')*')|(?P<quoted>`[^`]+`)"
    r"|(?P<symbol><=|>=|<>|!=|==|=|<|>|\(|\)|,)|(?P<word>[A-Za-z_][\w.]*))"
)
_OPERATORS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_MOST_LEVELS = 60
_SHOWN = 40
Range = tuple[Any, Any, int]


def parse_predicate(text: str) -> Predicate:
    """Parse a condition; raise UserError with the position of a syntax error."""
    return _Parser(text).parse()


def check_columns(predicate: Predicate, schema: pa.Schema) -> None:
    """Raise UserError for a column that `schema` lacks, with a similar name, and for a literal of another type."""
    for name in columns_of(predicate):
        path_of(name, schema)
    to_arrow(predicate, schema)


def matching(rows: pa.Table, where: Predicate, schema: pa.Schema) -> pa.Table:
    """Return the rows that meet a condition."""
    calls = {call.text: call for call in calls_of(where)}
    filtered = rows
    for text, call in calls.items():
        column, *inner = path_of(call.column, schema)
        values = rows.column(column)
        for name in inner:
            values = pc.struct_field(values, name)
        filtered = filtered.append_column(text, function_of(call).of_rows(values))
    matches = filtered.filter(to_arrow(where, schema))
    return matches.select(range(rows.num_columns)) if calls else matches


def function_of(call: Call) -> IndexFunction:
    """Return the function of a call."""
    return index_function(call.function, dict(call.options))


def result_field(call: Call, schema: pa.Schema) -> pa.Field:
    """Return the column with the results of a call; raise UserError if the function does not accept the column."""
    function, kind = function_of(call), type_of(call.column, schema)
    why = function.refusal(kind)
    if why is not None:
        raise UserError(f"{call.text}: {why}", column=call.column)
    return pa.field(call.text, function.result_type(kind))


def to_arrow(predicate: Predicate, schema: pa.Schema) -> pc.Expression:
    """Return the predicate as an expression over tables of `schema`; literals take the type of their column.

    The results of functions are columns named after their calls, which `matching` adds.
    """
    if isinstance(predicate, And):
        return _fold(predicate.parts, schema, lambda a, b: a & b, True)
    if isinstance(predicate, Or):
        return _fold(predicate.parts, schema, lambda a, b: a | b, False)
    if isinstance(predicate, Not):
        return ~to_arrow(predicate.part, schema)
    if isinstance(predicate, Applied):
        return to_arrow(predicate.part, pa.schema([result_field(predicate.call, schema)]))
    field = expression_of(predicate.column, schema)
    if isinstance(predicate, IsNull):
        return field.is_null()
    kind = type_of(predicate.column, schema)
    if isinstance(predicate, StartsWith):
        if not (pa.types.is_string(kind) or pa.types.is_binary(kind)):
            raise UserError(f"column {predicate.column!r} is {kind}; LIKE needs text", column=predicate.column)
        return pc.starts_with(field, predicate.prefix)
    if isinstance(predicate, In):
        return _is_in(field, typed_list(predicate, kind).values, kind)
    compared = typed_comparison(predicate, kind)
    if not isinstance(compared, Comparison):
        return to_arrow(compared, schema)
    return _compared(field, compared, kind)


def _is_in(field: pc.Expression, values: tuple[pa.Scalar, ...], kind: pa.DataType) -> pc.Expression:
    listed = pa.array(values, kind)
    if not pa.types.is_floating(kind):
        is_in = field.isin(listed)
    else:
        # Arrow's is_in compares the bits of floats: signs of zeros and payloads of NaN.
        if pc.any(pc.equal(listed, 0.0)).as_py():
            listed = pa.concat_arrays([listed, pa.array([0.0, -0.0], kind)])
        is_in = field.isin(listed)
        if pc.any(pc.is_nan(listed)).as_py():
            is_in = is_in | field.is_nan()
    # In SQL a null is neither in a list nor outside it; Arrow's is_in returns false for a null.
    return pc.if_else(field.is_valid(), is_in, pa.scalar(None, pa.bool_()))


def _compared(field: pc.Expression, where: Comparison, kind: pa.DataType) -> pc.Expression:
    """Convert a comparison with a typed literal to an Arrow expression."""
    is_floating = pa.types.is_floating(kind)
    if is_floating and math.isnan(where.value.as_py()):
        # NaN is the greatest value.
        every = field.is_nan() | ~field.is_nan()
        return {
            "=": field.is_nan(),
            "!=": ~field.is_nan(),
            "<": ~field.is_nan(),
            "<=": every,
            ">": ~every,
            ">=": field.is_nan(),
        }[where.operator]
    value = where.value
    compared: pc.Expression = {
        "=": field == value,
        "!=": field != value,
        "<": field < value,
        "<=": field <= value,
        ">": field > value,
        ">=": field >= value,
    }[where.operator]
    return compared | field.is_nan() if is_floating and where.operator in (">", ">=") else compared


def _fold(
    parts: tuple[Predicate, ...], schema: pa.Schema, join: Callable[[Any, Any], Any], empty: bool
) -> pc.Expression:
    expressions = [to_arrow(part, schema) for part in parts]
    if not expressions:
        return pc.scalar(empty)
    result = expressions[0]
    for expression in expressions[1:]:
        result = join(result, expression)
    return result


def _applied(call: Call, part: Predicate) -> Predicate:
    """Convert a condition on a column that is named after a function call to a condition on the call."""
    if isinstance(part, And | Or):
        return type(part)(tuple(_applied(call, inner) for inner in part.parts))
    if isinstance(part, Not):
        return Not(_applied(call, part.part))
    assert not isinstance(part, Applied), "a condition on a result contains no call"
    return Applied(call, part)


class _Parser:
    """Recursive descent: or -> and -> not -> one condition."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                raise UserError(f"cannot read the condition {text!r} from {text[position:].strip()[:20]!r} on")
            assert match.lastgroup is not None
            self._tokens.append((match.lastgroup, match.group(match.lastgroup)))
            position = match.end()
        self._next = self._depth = 0

    def parse(self) -> Predicate:
        predicate = self._either()
        if self._next < len(self._tokens):
            raise self._error()
        return predicate

    def _either(self) -> Predicate:
        parts = [self._both()]
        while self._take("OR"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _both(self) -> Predicate:
        parts = [self._negated()]
        while self._take("AND"):
            parts.append(self._negated())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _negated(self) -> Predicate:
        self._depth += 1
        if self._depth > _MOST_LEVELS:
            raise UserError(f"the condition {self._text[:_SHOWN]!r}... has more than {_MOST_LEVELS} levels of nesting")
        try:
            if self._take("NOT"):
                return Not(self._negated())
            if self._take("("):
                inner = self._either()
                self._expect(")")
                return inner
            return self._condition()
        finally:
            self._depth -= 1

    def _condition(self) -> Predicate:
        kind, name = self._pop()
        if kind not in ("word", "quoted"):
            raise self._error(1)
        column = name.strip("`")
        if kind == "word" and self._take("("):
            call = self._call(name)
            return _applied(call, self._compared(call.text))
        return self._compared(column)

    def _call(self, name: str) -> Call:
        """Return the call of a function whose name and parenthesis were read."""
        kind, column = self._pop()
        if kind not in ("word", "quoted"):
            raise self._error(1)
        arguments = []
        while self._take(","):
            arguments.append(str(self._literal()))
        self._expect(")")
        function = called_function(name, arguments)
        return Call(function=function.name, column=column.strip("`"), options=function.arguments)

    def _compared(self, column: str) -> Predicate:
        if self._take("IS"):
            negated = self._take("NOT")
            self._expect("NULL")
            return Not(IsNull(column)) if negated else IsNull(column)
        if self._take("NOT"):
            return Not(self._tail(column))
        return self._tail(column)

    def _tail(self, column: str) -> Predicate:
        if self._take("IN"):
            self._expect("(")
            values = [self._literal()]
            while self._take(","):
                values.append(self._literal())
            self._expect(")")
            return In(column, tuple(values))
        if self._take("BETWEEN"):
            low = self._literal()
            self._expect("AND")
            return And((Comparison(column, ">=", low), Comparison(column, "<=", self._literal())))
        if self._take("LIKE"):
            pattern = self._literal()
            if not isinstance(pattern, str) or not pattern.endswith("%") or any(c in pattern[:-1] for c in "%_"):
                raise UserError(f"LIKE {pattern!r}: only a prefix followed by % is supported")
            return StartsWith(column, pattern[:-1])
        kind, symbol = self._pop()
        if kind != "symbol" or symbol not in _OPERATORS:
            raise self._error(1)
        return Comparison(column, _OPERATORS[symbol], self._literal())  # type: ignore[arg-type]

    def _literal(self) -> Any:
        kind, token = self._pop()
        if kind == "number":
            return self._number(token)
        if kind == "text":
            return token[1:-1].replace("''", "'")
        if kind == "word" and token.lower() in ("true", "false"):
            return token.lower() == "true"
        if kind == "word" and token.upper() in ("DATE", "TIMESTAMP", "TIME"):
            return self._time(token.upper())
        raise self._error(1)

    def _number(self, token: str) -> int | Decimal:
        if len(token) > MOST_DIGITS:
            raise UserError(f"the number {token[:_SHOWN]}... has more than {MOST_DIGITS} digits")
        try:
            return Decimal(token) if any(c in token for c in ".eE") else int(token)
        except ArithmeticError:
            raise UserError(f"the exponent of the number {token} is too large: write a smaller one") from None

    def _time(self, keyword: str) -> TimeLiteral:
        kind, token = self._pop()
        if kind != "text":
            raise self._error(1)
        literal = TimeLiteral(cast(Any, keyword), token[1:-1].replace("''", "'"))
        try:
            if keyword == "TIME":
                parse_time(literal.text)
                return literal
            moment = parse_moment(literal.text)
        except ValueError as error:
            raise UserError(f"cannot read the condition {self._text!r}: {literal}: {error}") from None
        if keyword == "DATE" and (moment.has_time or moment.has_zone):
            raise UserError(
                f"cannot read the condition {self._text!r}: {literal} has a time of day, which a date does not have. "
                f"Write TIMESTAMP '{literal.text}' to compare with it"
            )
        return literal

    def _take(self, word: str) -> bool:
        if self._next < len(self._tokens):
            kind, token = self._tokens[self._next]
            if kind in ("word", "symbol") and token.upper() == word:
                self._next += 1
                return True
        return False

    def _expect(self, word: str) -> None:
        if not self._take(word):
            raise self._error()

    def _pop(self) -> tuple[str, str]:
        if self._next >= len(self._tokens):
            raise UserError(f"the condition {self._text!r} ends too early")
        self._next += 1
        return self._tokens[self._next - 1]

    def _error(self, back: int = 0) -> UserError:
        position = self._next - back
        token = self._tokens[position][1] if position < len(self._tokens) else "its end"
        return UserError(f"cannot read the condition {self._text!r}: did not expect {token!r}")
