"""Parse SQL into expressions: sqlglot reads the string, and its tree is converted node by node.

A construct without an entry here is a UserError that names it, so no part of a string is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from decimal import Decimal
from functools import lru_cache
from importlib import import_module
from typing import Any, cast

from lakehouse.core.expressions.literal_texts import MOST_DIGITS, parse_moment, parse_time
from lakehouse.errors import UserError
from lakehouse.model.expression import Column, Expression, Operation, Value
from lakehouse.model.predicate import TimeLiteral
from lakehouse.model.texts import require_encodable

#: Prefix of the function into which `DATE '...'` is parsed.
_TIME_LITERAL = "literal "
_SHOWN = 40
_CACHED = 256
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?", re.ASCII)
_BINARY = {
    "EQ": "=", "NEQ": "!=", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">=", "NullSafeEQ": "<=>",
    "Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "Mod": "%", "IntDiv": "div", "DPipe": "||",
    "BitwiseAnd": "&", "BitwiseOr": "|", "BitwiseXor": "^", "RegexpLike": "rlike",
}  # fmt: skip
_UNARY = {"Not": "not", "Neg": "negative", "BitwiseNot": "~"}
#: Names for constructs of SQL that are no expressions over the columns of one row.
_REFUSED = {
    "Select": "a query", "Subquery": "a subquery", "Exists": "a subquery", "Window": "a window function",
    "Star": "*", "Placeholder": "a placeholder", "Parameter": "a parameter", "Lambda": "a lambda function",
    "Bracket": "an element in brackets", "HexString": "a hexadecimal literal", "Kwarg": "a named argument",
    "Command": "a command", "Any": "LIKE ANY", "All": "LIKE ALL",
}  # fmt: skip


@lru_cache(_CACHED)
def parse_expression(text: str, *, noun: str = "condition") -> Expression:
    """Parse one expression of Spark SQL.

    Args:
        text: The SQL.
        noun: The name of the string in messages.

    Raises:
        UserError: The text has a syntax error, or contains a construct that is not an expression over one row.
    """
    require_encodable(text, f"the {noun}")
    if len(text) > _SHOWN and max(map(len, re.findall(r"[0-9]+", text)), default=0) > MOST_DIGITS:
        raise _too_long(max(re.findall(r"[0-9]+", text), key=len))
    # sqlglot takes time to import, and a read without a condition does not need it.
    dialect = import_module("lakehouse.core.expressions.sql_dialect")
    try:
        return _Converter(text, noun).convert(dialect.parse_tree(text, noun))
    except RecursionError:
        raise dialect.too_deep(text, noun) from None


def _too_long(token: str) -> UserError:
    return UserError(f"the number {token[:_SHOWN]}... has more than {MOST_DIGITS} digits")


class _Converter:
    """Converts a tree of sqlglot. `convert` looks up the class of a node; each method converts one kind."""

    def __init__(self, text: str, noun: str) -> None:
        self._text, self._noun = text, noun
        self._methods: dict[str, Callable[[Any], Expression]] = {
            "Paren": lambda node: self.convert(node.this),
            "Column": self._column,
            "Dot": self._column,
            "Literal": self._literal,
            "RawString": lambda node: Value(node.name),
            "Boolean": lambda node: Value(bool(node.this)),
            "Null": lambda _: Value(None),
            "Concat": self._adjacent,
            "And": lambda node: self._chain("and", node),
            "Or": lambda node: self._chain("or", node),
            "NullSafeNEQ": lambda node: Operation("not", (self._call("<=>", (node.this, node.expression)),)),
            "In": self._in,
            "Between": self._between,
            "Like": lambda node: self._like("like", node),
            "ILike": lambda node: self._like("ilike", node),
            "Escape": self._escape,
            "Is": self._is,
            "If": self._if,
            "Case": self._case,
            "Cast": self._cast,
            "TryCast": self._cast,
            "Interval": self._interval,
            "Extract": self._extract,
            "Anonymous": self._function,
        }

    def convert(self, node: Any) -> Expression:
        """Convert a node with its children."""
        kind = type(node).__name__
        if kind in self._methods:
            return self._methods[kind](node)
        if kind in _BINARY:
            return self._call(_BINARY[kind], (node.this, node.expression))
        if kind in _UNARY:
            return self._unary(_UNARY[kind], node)
        if kind in ("Alias", "Aliases"):
            alias = node.alias or node.expressions[0].name
            raise UserError(f"cannot read the {self._noun} {self._text!r}: did not expect {alias!r}")
        raise self._refused(_REFUSED.get(kind, kind.upper()))

    def _call(self, name: str, nodes: Iterable[Any]) -> Expression:
        return Operation(name, tuple(self.convert(node) for node in nodes))

    def _unary(self, name: str, node: Any) -> Expression:
        part = self.convert(node.this)
        if name == "negative" and isinstance(part, Value) and isinstance(part.value, int | Decimal | float):
            if isinstance(part.value, bool):
                return part
            # The operator rounds a decimal to the 28 digits of Python's context.
            return Value(part.value.copy_negate() if isinstance(part.value, Decimal) else -part.value)
        return Operation(name, (part,))

    def _chain(self, name: str, node: Any) -> Expression:
        """Convert a chain of AND or OR, which sqlglot nests to the left, without recursion."""
        parts: list[Any] = []
        kind = type(node)
        while isinstance(node, kind):
            parts.append(node.expression)
            node = node.this
        return self._call(name, (node, *reversed(parts)))

    def _column(self, node: Any) -> Expression:
        if type(node).__name__ == "Dot":
            left = self.convert(node.this)
            if not isinstance(left, Column):
                raise self._refused("a field of an expression")
            return Column(f"{left.name}.{self._name(node.expression)}")
        if type(node.this).__name__ == "Star":
            raise self._refused("*")
        return Column(".".join(self._name(part) for part in node.parts))

    def _name(self, node: Any) -> str:
        name = str(node.name)
        if not node.args.get("quoted") and not name.isidentifier():
            raise UserError(
                f"cannot read the {self._noun} {self._text!r} from {name!r} on: did not expect {name!r}; write a name "
                "with such characters in backquotes"
            )
        return name

    def _literal(self, node: Any) -> Expression:
        text = str(node.this)
        if node.is_string:
            return Value(text)
        if len(text) > MOST_DIGITS:
            raise _too_long(text)
        if not _NUMBER.fullmatch(text):
            raise UserError(f"cannot read the {self._noun} {self._text!r}: {text!r} is not a number")
        try:
            return Value(Decimal(text) if any(c in text for c in ".eE") else int(text))
        except ArithmeticError:
            raise UserError(f"the exponent of the number {text} is too large: write a smaller one") from None

    def _adjacent(self, node: Any) -> Expression:
        """Convert adjacent strings, which are one string in Spark."""
        parts = [self.convert(part) for part in node.expressions]
        texts = [part.value for part in parts if isinstance(part, Value) and isinstance(part.value, str)]
        if len(texts) < len(parts):
            raise self._refused("CONCAT")
        return Value("".join(texts))

    def _in(self, node: Any) -> Expression:
        if node.args.get("query") is not None or node.args.get("unnest") is not None:
            raise self._refused("a subquery")
        if not node.expressions:
            field = "')'" if node.args.get("field") is None else repr(node.args["field"].sql())
            raise UserError(f"cannot read the {self._noun} {self._text!r}: did not expect {field} after IN")
        return self._call("in", (node.this, *node.expressions))

    def _between(self, node: Any) -> Expression:
        if node.args.get("symmetric"):
            raise self._refused("BETWEEN SYMMETRIC")
        value = self.convert(node.this)
        low, high = (self.convert(node.args[name]) for name in ("low", "high"))
        return Operation("and", (Operation(">=", (value, low)), Operation("<=", (value, high))))

    def _like(self, name: str, node: Any, escape: str = "\\") -> Expression:
        pattern = self.convert(node.expression)
        matched = Operation(name, (self.convert(node.this), pattern), escape)
        return Operation("not", (matched,)) if node.args.get("negate") else matched

    def _escape(self, node: Any) -> Expression:
        character = self.convert(node.expression)
        name = {"Like": "like", "ILike": "ilike"}.get(type(node.this).__name__)
        if name is None or not isinstance(character, Value) or len(str(character.value)) != 1:
            raise self._refused("ESCAPE with more than one character")
        return self._like(name, node.this, str(character.value))

    def _is(self, node: Any) -> Expression:
        other = self.convert(node.expression)
        value = self.convert(node.this)
        if other == Value(None):
            return Operation("isnull", (value,))
        if isinstance(other, Value) and isinstance(other.value, bool):
            return Operation("<=>", (value, other))
        raise self._refused("IS with another operand than NULL, TRUE or FALSE")

    def _if(self, node: Any) -> Expression:
        otherwise = node.args.get("false")
        parts = [node.this, node.args["true"]]
        return self._call("case", parts if otherwise is None else [*parts, otherwise])

    def _case(self, node: Any) -> Expression:
        """Convert CASE to conditions and results in turn; an odd last argument is ELSE."""
        subject = None if node.this is None else self.convert(node.this)
        parts: list[Expression] = []
        for branch in node.args["ifs"]:
            when = self.convert(branch.this)
            parts += [when if subject is None else Operation("=", (subject, when)), self.convert(branch.args["true"])]
        if node.args.get("default") is not None:
            parts.append(self.convert(node.args["default"]))
        return Operation("case", tuple(parts))

    def _cast(self, node: Any) -> Expression:
        inner = self.convert(node.this)
        # sqlglot parses a number with the suffix of its type, such as 1L, to TRY_CAST.
        is_number = isinstance(inner, Value) and isinstance(inner.value, int | Decimal)
        name = "cast" if is_number or type(node).__name__ == "Cast" else "try_cast"
        return Operation(name, (inner,), node.to.sql(dialect="spark").upper())

    def _interval(self, node: Any) -> Expression:
        unit = node.args.get("unit")
        amount = None if node.this is None else self.convert(node.this)
        if unit is None or type(unit).__name__ != "Var" or not isinstance(amount, Value):
            raise self._refused("an INTERVAL with another form than INTERVAL 7 DAYS")
        try:
            count = int(str(amount.value))
        except ValueError:
            raise self._refused(f"INTERVAL {amount.value!r}, which is not a whole number") from None
        return Operation("interval", (Value(count),), unit.name.lower().removesuffix("s"))

    def _extract(self, node: Any) -> Expression:
        return self._call(node.this.name.lower(), (node.expression,))

    def _function(self, node: Any) -> Expression:
        name = str(node.this)
        if name.startswith(_TIME_LITERAL):
            return Value(self._time(name.removeprefix(_TIME_LITERAL), node.expressions[0]))
        return self._call(name.lower(), node.expressions)

    def _time(self, keyword: str, node: Any) -> TimeLiteral:
        if not node.is_string:
            raise UserError(f"cannot read the {self._noun} {self._text!r}: did not expect {node.name!r}")
        literal = TimeLiteral(cast(Any, keyword), str(node.this))
        try:
            if keyword == "TIME":
                parse_time(literal.text)
                return literal
            moment = parse_moment(literal.text)
        except ValueError as error:
            raise UserError(f"cannot read the {self._noun} {self._text!r}: {literal}: {error}") from None
        if keyword == "DATE" and (moment.has_time or moment.has_zone):
            raise UserError(
                f"cannot read the {self._noun} {self._text!r}: {literal} has a time of day, which a date does not "
                f"have. Write TIMESTAMP '{literal.text}' to compare with it"
            )
        return literal

    def _refused(self, construct: str) -> UserError:
        return UserError(
            f"the {self._noun} {self._text!r} contains {construct}, which cannot be evaluated on the rows of a table"
        )
