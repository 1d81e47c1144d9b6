"""The page of the functions and operators of expressions."""

from __future__ import annotations

from docs.generators.markdown import code, page, table
from lakehouse.core.expressions.casts import TYPES
from lakehouse.core.expressions.functions import FUNCTIONS, LAZY

_INTRO = """\
Conditions and values of `scan(where=...)`, `update`, `delete_where` and `merge` are expressions of Spark SQL. They are
parsed by sqlglot, and evaluated on Arrow data. [Conditions](../concepts/conditions.md) describes how they prune files,
and [Update and merge rows](../how-to/update-and-merge.md) how statements use them. Each example below is true."""
_OPERATORS = (
    (
        "`OR`, `AND`, `NOT`",
        "True, false and null. A part that does not matter for a row raises no error.",
    ),
    ("`=`, `==`, `<>`, `!=`, `<`, `<=`, `>`, `>=`", "A literal is compared in the type of the other side, exactly."),
    ("`<=>`, `IS [NOT] DISTINCT FROM`", "Equality in which null equals null."),
    ("`IS [NOT] NULL`, `IS [NOT] TRUE`, `IS [NOT] FALSE`", "Never null."),
    ("`[NOT] IN (...)`, `[NOT] BETWEEN a AND b`", "The items are any expressions; subqueries are refused."),
    ("`[NOT] LIKE pattern [ESCAPE c]`, `ILIKE`", "The pattern is a literal; `%` is any text, `_` one character."),
    ("`RLIKE`, `REGEXP`", "The pattern is a literal: a Java expression with the same result in RE2."),
    ("`+`, `-`, `*`, `/`, `%`, `DIV`", "In the types of Spark. An overflow and a division by zero are errors."),
    ("`date + 7`, `date + INTERVAL 1 MONTH`", "Days, and intervals of whole units from years to microseconds."),
    ("`&`, `\\|`, `^`, `~`, `\\|\\|`", "Bits of integers, and concatenation of strings."),
    (
        "`CASE`, `IF(...)`",
        "A branch is evaluated for its rows only: `CASE WHEN n <> 0 THEN 1 / n END`.",
    ),
    (
        "`CAST(a AS type)`, `a::type`, `TRY_CAST`",
        "A value that does not fit is an error; `TRY_CAST` gives null.",
    ),
    ("`a.b`, `` `a b` ``", "A field of a struct, and a name with other characters."),
)
_LITERALS = """\
Numbers (`12`, `-1.50`, `1e3`, `5L`; a number with a fraction or an exponent is an exact decimal), strings in single or
double quotes (a quote is doubled or follows a backslash, `r'...'` has no escapes), `TRUE`, `FALSE`, `NULL`,
`DATE '2026-01-31'`, `TIMESTAMP '2026-01-31 12:00:00'`, `TIME '12:00:00'`. Times without a time zone are in UTC."""
_ERRORS = """\
The rules are those of Spark in its ANSI mode: an overflow, a division by zero and a failed cast are errors, and the
message names the value. What cannot be evaluated on the rows of one table is refused by name: subqueries, aggregates,
window functions, unknown functions, parameters, elements of lists and maps."""


def expressions_page() -> str:
    """Return the page of operators, functions and types."""
    parts = [_INTRO, "## Operators", table(("operators", "rules"), list(_OPERATORS)), "## Literals", _LITERALS]
    for group in dict.fromkeys(function.group for function in FUNCTIONS.values()):
        rows = [(code(name), code(one.example)) for name, one in FUNCTIONS.items() if one.group == group]
        parts += [f"## {group}", table(("function", "example"), rows)]
    parts += ["## Nulls and branches", table(("function", "example"), [(code(n), code(e)) for n, e in LAZY.items()])]
    parts += [
        "## Types of casts",
        ", ".join(code(name) for name in (*TYPES, "DECIMAL(p, s)")) + ".",
        "## Errors",
        _ERRORS,
    ]
    return page("Expressions", "lakehouse/core/expressions", *parts)
