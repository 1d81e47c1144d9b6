"""Random conditions hold for the same rows in Spark SQL and in Arrow."""

from __future__ import annotations

import math
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import functions as F

from lakehouse.core.planning.predicate import matching, parse_predicate

pytestmark = pytest.mark.spark

_CONDITIONS = 150
_OPERATORS = ("=", "!=", "<", "<=", ">", ">=")
_MICROS = 253_402_300_799_999_999


def decimal(rng: Random, most: int, scale: int) -> str:
    """Return a decimal literal of at most `most` digits."""
    digits = str(rng.randrange(10 ** rng.randint(1, most))).rjust(scale + 1, "0")
    number = f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits
    return rng.choice(["", "-"]) + number


def moment(rng: Random) -> str:
    """Return a timestamp literal of the years 1 to 9999 with at most six digits of a second."""
    micros = rng.choice([rng.randrange(-62_135_596_800_000_000, _MICROS), 0, -1, _MICROS])
    text = pc.strftime(pa.array([micros], pa.timestamp("us")), "%Y-%m-%d %H:%M:%S")[0].as_py()
    return text


def literal(rng: Random, column: str) -> str:
    """Return a literal for a column in the syntax that Spark and conditions share."""
    if column in ("f", "d"):
        return rng.choice([decimal(rng, 18, rng.randint(0, 17)), "0", "-0.0", "0.1", "1.5", "16777217", repr(1e300)])
    if column == "day":
        return rng.choice([f"DATE '{moment(rng)[:10]}'", f"TIMESTAMP '{moment(rng)}'", f"'{moment(rng)[:10]}'"])
    if column in ("at", "local"):
        return rng.choice([f"TIMESTAMP '{moment(rng)}'", f"DATE '{moment(rng)[:10]}'"])
    near = rng.choice(["1.10", "999.99", "9007199254740993", "9007199254740992.5", "2147483647", "-0.01"])
    return rng.choice([near, decimal(rng, 30, rng.randint(0, 8))])


def values(rng: Random, column: str) -> list[Any]:
    """Return values of a column, with null and with those at the ends of its type."""
    if column in ("f", "d"):
        return [0.0, -0.0, math.nan, math.inf, -math.inf, 0.1, 1.5, 16777216.0, rng.uniform(-1e3, 1e3), None]
    if column in ("m", "w"):
        return [*map(Decimal, ("0.00", "1.10", "999.99", "-999.99", "-0.01", "1.00", "5.05", "10.00", "0.01")), None]
    if column == "n":
        return [0, 1, -1, 2**31 - 1, -(2**31), 999, 1000, 2, 3, None]
    if column == "i":
        return [0, 1, -1, 2**63 - 1, -(2**63), 2**53, 2**53 + 1, 2, 3, None]
    if column == "day":
        return [0, -719_162, 2_932_896, -1, 1, 20_454, -141_428, 2_932_897, 10, None]
    return [0, -62_135_596_800_000_000, _MICROS, -1, 1, 1_767_268_800_000_000, _MICROS + 1, 2, 3, None]


def test_random_conditions_hold_for_the_rows_of_spark(spark: Any) -> None:
    rng = Random(20260101)
    kinds = {
        "f": pa.float32(), "d": pa.float64(), "m": pa.decimal128(5, 2), "w": pa.decimal128(38, 10), "n": pa.int32(),
        "i": pa.int64(), "day": pa.date32(), "at": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"),
    }  # fmt: skip
    columns = {name: pa.array(values(rng, name), kind) for name, kind in kinds.items()}
    rows = pa.table({"id": pa.array(range(10)), **columns})
    wheres = {}
    for _ in range(_CONDITIONS):
        name = rng.choice(list(kinds))
        listed = ", ".join(literal(rng, name) for _ in range(3))
        right = rng.choice([f"{rng.choice(_OPERATORS)} {literal(rng, name)}"] * 4 + [f"IN ({listed})"])
        where = rng.choice(["", "NOT "]) + f"{name} {right}"
        # Spark replaces a comparison of a bigint with a number beyond its range by true, for rows with null, too.
        wheres[where] = F.expr(f"CASE WHEN {name} IS NOT NULL THEN {where} END").alias(where)
    results = spark.createDataFrame(rows).select("id", *wheres.values()).toArrow()
    for where in wheres:
        expected = sorted(results.filter(results.column(where)).column("id").to_pylist())
        assert matching(rows, parse_predicate(where), rows.schema).column("id").to_pylist() == expected, where
