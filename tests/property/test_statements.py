"""Random MERGE, UPDATE and DELETE statements give the same rows as a dict, deltalake and DuckDB, also on executors.

LAKEHOUSE_EXAMPLES=n runs n times as many histories.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakehouse import Table
from tests.support.arrow_shuffle import use_executors

SEEDS = range(4 * int(os.environ.get("LAKEHOUSE_EXAMPLES", "1")))
STATEMENTS = 5
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64()), ("w", pa.int64())])
Row = tuple[int, int | None, int | None]
Values = dict[str, int | None]

# A comparison with null is neither true nor false, so a condition with null does not hold.
CONDITIONS: dict[str, dict[str, Callable[[Values, Values], bool]]] = {
    "matched": {
        "source.v > target.v": lambda s, t: _both(s["v"], t["v"], lambda left, right: left > right),
        "target.w = 1": lambda s, t: t["w"] == 1,
        "source.w IS NULL": lambda s, t: s["w"] is None,
        "NOT (source.w = target.w)": lambda s, t: _both(s["w"], t["w"], lambda left, right: left != right),
    },
    "not matched": {
        "source.v >= 0": lambda s, t: s["v"] is not None and s["v"] >= 0,
        "source.w IS NOT NULL": lambda s, t: s["w"] is not None,
    },
    "not matched by source": {
        "target.v < 0": lambda s, t: t["v"] is not None and t["v"] < 0,
        "target.w = 0 OR target.v IS NULL": lambda s, t: t["w"] == 0 or t["v"] is None,
    },
}
VALUES: dict[str, Callable[[Values, Values], int | None]] = {
    "source.v": lambda s, t: s["v"],
    "target.v": lambda s, t: t["v"],
    "target.v + 1": lambda s, t: None if t["v"] is None else t["v"] + 1,
    "source.w - source.v": lambda s, t: _number(s["w"], s["v"]),
    "CASE WHEN target.w > 0 THEN 7 ELSE target.v END": lambda s, t: 7 if (t["w"] or 0) > 0 else t["v"],
    "coalesce(source.w, 5)": lambda s, t: 5 if s["w"] is None else s["w"],
}


def _both(left: int | None, right: int | None, holds: Callable[[int, int], bool]) -> bool:
    return left is not None and right is not None and holds(left, right)


def _number(left: int | None, right: int | None) -> int | None:
    return None if left is None or right is None else left - right


@dataclass(frozen=True)
class Clause:
    """A clause of MERGE; `values` are expressions by column."""

    when: str
    verb: str
    condition: str | None
    values: dict[str, str] = field(default_factory=dict)


def random_clause(draw: random.Random, when: str) -> Clause:
    """Return a clause with a condition in two of three cases."""
    condition = draw.choice([None, *CONDITIONS[when], *CONDITIONS[when]])
    if when == "not matched":
        return Clause(
            when, "insert", condition, {"id": "source.id", "v": draw.choice(["source.v", "source.w - source.v"])}
        )
    sides = ("source.", "target.") if when == "matched" else ("target.",)
    hidden = [side for side in ("source.", "target.") if side not in sides]
    usable = [text for text in VALUES if not any(side in text for side in hidden)]
    if draw.random() < 0.4:
        return Clause(when, "delete", condition)
    return Clause(
        when, "update", condition, {name: draw.choice(usable) for name in draw.choice([["v"], ["w"], ["v", "w"]])}
    )


def random_clauses(draw: random.Random) -> list[Clause]:
    """Return up to four clauses; a clause without condition is the last of its kind, as the standard requires."""
    clauses: list[Clause] = []
    for when, most in (("matched", 2), ("not matched", 1), ("not matched by source", 1)):
        for _ in range(draw.randint(0 if clauses or when != "not matched by source" else 1, most)):
            if not any(clause.when == when and clause.condition is None for clause in clauses):
                clauses.append(random_clause(draw, when))
    return clauses


def random_rows(draw: random.Random, keys: int) -> dict[int, Values]:
    """Return rows with distinct keys."""
    numbers = [None, -2, -1, 0, 1, 2, 3]
    return {
        key: {"id": key, "v": draw.choice(numbers), "w": draw.choice(numbers)} for key in draw.sample(range(12), keys)
    }


def arrow(rows: dict[int, Values]) -> pa.Table:
    """Return rows as Arrow data."""
    return pa.Table.from_pylist(list(rows.values()), SCHEMA)


def merged(rows: dict[int, Values], source: dict[int, Values], clauses: list[Clause]) -> dict[int, Values]:
    """Return the rows after a MERGE by key, by the rules of the standard."""
    result = {key: dict(row) for key, row in rows.items()}
    for key in rows.keys() | source.keys():
        stored, new = rows.get(key, {}), source.get(key, {})
        when = "matched" if stored and new else "not matched" if new else "not matched by source"
        for clause in clauses:
            if clause.when != when or not (clause.condition is None or CONDITIONS[when][clause.condition](new, stored)):
                continue
            values = {
                name: key if text == "source.id" else VALUES[text](new, stored) for name, text in clause.values.items()
            }
            if clause.verb == "delete":
                del result[key]
            else:
                result[key] = {"id": key, "v": None, "w": None, **stored, **values}
            break
    return result


def execute_in_ours_or_deltalake(builder: Any, clauses: list[Clause]) -> None:
    """Add the clauses by the verbs that both interfaces have, and run the statement."""
    for clause in clauses:
        name = f"when_{clause.when.replace(' ', '_')}_{clause.verb}"
        arguments = (clause.condition,) if clause.verb == "delete" else (clause.values, clause.condition)
        builder = getattr(builder, name)(*arguments)
    builder.execute()


def execute_in_duckdb(connection: duckdb.DuckDBPyConnection, source: pa.Table, clauses: list[Clause]) -> None:
    """Run the statement as SQL."""
    texts = ["MERGE INTO target USING source ON source.id = target.id"]
    for clause in clauses:
        condition = "" if clause.condition is None else f" AND ({clause.condition})"
        values = ", ".join(f"{name} = {text}" for name, text in clause.values.items())
        action = {
            "update": f"UPDATE SET {values}",
            "delete": "DELETE",
            "insert": f"INSERT ({', '.join(clause.values)}) VALUES ({', '.join(clause.values.values())})",
        }[clause.verb]
        texts.append(f"WHEN {clause.when.upper()}{condition} THEN {action}")
    connection.register("source", source)
    connection.execute(" ".join(texts))


def ordered(rows: pa.Table) -> list[Row]:
    """Return rows by key."""
    return sorted((row["id"], row["v"], row["w"]) for row in rows.select(SCHEMA.names).to_pylist())


@contextmanager
def on_executors() -> Iterator[None]:
    """Run statements in this block as executors do."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_executors(monkeypatch)
        yield


def update_and_delete(
    draw: random.Random, tables: tuple[Table, Table, DeltaTable, Any], rows: dict[int, Values]
) -> dict[int, Values]:
    """Run an UPDATE and a DELETE in all engines, and return the rows of the dict."""
    table, distributed, delta, connection = tables
    where = draw.choice(list(CONDITIONS["not matched by source"]))
    plain, holds = where.replace("target.", ""), CONDITIONS["not matched by source"][where]
    text = draw.choice([text for text in VALUES if "source." not in text])
    value = text.replace("target.", "")
    table.update({"w": value}, plain)
    with on_executors():
        distributed.update({"w": value}, plain)
    delta.update(updates={"w": value}, predicate=plain)
    connection.execute(f"UPDATE target SET w = {value} WHERE {plain}")
    rows = {key: {**row, "w": VALUES[text]({}, row)} if holds({}, row) else row for key, row in rows.items()}
    limit = draw.randint(0, 12)
    table.delete_where(f"id * 2 = {limit}")
    with on_executors():
        distributed.delete_where(f"id * 2 = {limit}")
    delta.delete(f"id * 2 = {limit}")
    connection.execute(f"DELETE FROM target WHERE id * 2 = {limit}")
    return {key: row for key, row in rows.items() if key * 2 != limit}


@pytest.mark.parametrize("seed", SEEDS)
def test_random_statements_give_the_same_rows_in_all_engines(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    rows = random_rows(draw, 8)
    kind = ("COW", "MOR")[seed % 2]
    table = Table.create(f"memory://statements/{seed}-{os.getpid()}", name="t", record_key="id", table_type=kind)
    distributed = Table.create(f"{table.location}-distributed", name="t", record_key="id", table_type=kind)
    for each in (table, distributed):
        each.upsert(arrow(rows))
    write_deltalake(str(tmp_path), arrow(rows))
    delta, connection = DeltaTable(str(tmp_path)), duckdb.connect()
    connection.register("stored", arrow(rows))
    connection.execute("CREATE TABLE target AS SELECT * FROM stored")
    for number in range(STATEMENTS):
        source, clauses = random_rows(draw, 6), random_clauses(draw)
        on = "source.id = target.id"
        execute_in_ours_or_deltalake(table.merge(arrow(source), on), clauses)
        with on_executors():
            execute_in_ours_or_deltalake(distributed.merge(arrow(source), on), clauses)
        execute_in_ours_or_deltalake(
            delta.merge(arrow(source), on, source_alias="source", target_alias="target"), clauses
        )
        execute_in_duckdb(connection, arrow(source), clauses)
        rows = merged(rows, source, clauses)
        expected = ordered(arrow(rows))
        context = f"seed {seed}, statement {number}: {clauses}"
        assert ordered(table.scan().to_arrow()) == expected, context
        assert ordered(distributed.scan().to_arrow()) == expected, f"executors, {context}"
        assert ordered(connection.sql("SELECT * FROM target").to_arrow_table()) == expected, f"DuckDB, {context}"
        assert ordered(pa.table(delta.to_pyarrow_table())) == expected, f"deltalake, {context}"
        rows = update_and_delete(draw, (table, distributed, delta, connection), rows)
        expected = ordered(arrow(rows))
        assert ordered(table.scan().to_arrow()) == expected, context
        assert ordered(distributed.scan().to_arrow()) == expected, f"executors, {context}"
        assert ordered(connection.sql("SELECT * FROM target").to_arrow_table()) == expected, f"DuckDB, {context}"
        assert ordered(pa.table(delta.to_pyarrow_table())) == expected, f"deltalake, {context}"
    connection.close()
