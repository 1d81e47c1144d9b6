"""UPDATE, DELETE and MERGE agree with a model of dictionaries and with DuckDB, for random tables and statements."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse import Table
from lakehouse.errors import UserError
from tests.support.tables import examples

Row = dict[str, Any]
SCHEMA = pa.schema([("id", pa.string()), ("part", pa.string()), ("n", pa.int64()), ("s", pa.string())])
NUMBERS = itertools.count()
ids = st.sampled_from([f"k{number}" for number in range(8)])
numbers = st.none() | st.integers(-3, 3)
texts = st.none() | st.sampled_from(["a", "b", "c"])


def part_of(key: str) -> str:
    """Return the partition of a key, so that an equal key is always in the same partition."""
    return f"p{int(key[1:]) % 2}"


@st.composite
def row_lists(draw: st.DrawFn, *, unique: bool) -> list[Row]:
    keys = draw(st.lists(ids, unique=unique, max_size=8))
    return [{"id": key, "part": part_of(key), "n": draw(numbers), "s": draw(texts)} for key in keys]


@dataclass(frozen=True)
class Term:
    """A condition or a value: its SQL text, and its value for a pair of rows."""

    sql: str
    of: Callable[[Row | None, Row | None], Any]


def compared(left: Any, right: Any, test: Callable[[Any, Any], bool]) -> bool | None:
    return None if left is None or right is None else test(left, right)


PAIRED = (
    Term("source.n > target.n", lambda s, t: compared(s["n"], t["n"], lambda a, b: a > b)),
    Term("source.s = target.s", lambda s, t: compared(s["s"], t["s"], lambda a, b: a == b)),
)
OF_TARGET = (
    Term("target.n > 0", lambda _, t: compared(t["n"], 0, lambda a, b: a > b)),
    Term("target.s IS NULL OR target.n * 2 < -2", lambda _, t: t["s"] is None or (t["n"] is not None and t["n"] < -1)),
    Term("NOT (target.n <=> 1)", lambda _, t: t["n"] != 1),
)
OF_SOURCE = (
    Term("source.n % 2 = 0", lambda s, _: compared(s["n"], 0, lambda a, _b: a % 2 == 0)),
    Term("source.s IN ('a', 'b')", lambda s, _: None if s["s"] is None else s["s"] in ("a", "b")),
)
NUMBER_OF_TARGET = (
    Term("target.n + 10", lambda _, t: None if t["n"] is None else t["n"] + 10),
    Term("7", lambda _s, _t: 7),
    Term("NULL", lambda _s, _t: None),
)
NUMBER_OF_PAIR = (
    Term("source.n", lambda s, _: s["n"]),
    Term("coalesce(source.n, 0) - coalesce(target.n, 0)", lambda s, t: (s["n"] or 0) - (t["n"] or 0)),
)
TEXT_OF_PAIR = (Term("source.s", lambda s, _: s["s"]), Term("coalesce(target.s, 'z')", lambda _, t: t["s"] or "z"))


@dataclass(frozen=True)
class Branch:
    """A clause: WHEN kind AND condition THEN verb with values (None: all columns)."""

    kind: str
    verb: str
    condition: Term | None = None
    values: tuple[tuple[str, Term], ...] | None = ()

    def sql(self) -> str:
        when = "" if self.condition is None else f" AND ({self.condition.sql})"
        if self.verb == "DELETE":
            return f"WHEN {self.kind}{when} THEN DELETE"
        if self.verb == "INSERT":
            columns = ", ".join(f"source.{name}" for name in SCHEMA.names)
            return f"WHEN {self.kind}{when} THEN INSERT (id, part, n, s) VALUES ({columns})"
        pairs = self.values or tuple((name, Term(f"source.{name}", lambda s, _: None)) for name in ("n", "s"))
        return f"WHEN {self.kind}{when} THEN UPDATE SET {', '.join(f'{name} = {term.sql}' for name, term in pairs)}"


def maybe(terms: tuple[Term, ...]) -> st.SearchStrategy[Term | None]:
    return st.none() | st.sampled_from(terms)


@st.composite
def branches(draw: st.DrawFn) -> list[Branch]:
    chosen = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["MATCHED", "MATCHED", "NOT MATCHED", "NOT MATCHED BY SOURCE"]))
        if kind == "NOT MATCHED":
            chosen.append(Branch(kind, "INSERT", draw(maybe(OF_SOURCE)), None))
            continue
        is_pair = kind == "MATCHED"
        condition = draw(maybe((*OF_TARGET, *((*PAIRED, *OF_SOURCE) if is_pair else ()))))
        if draw(st.integers(0, 3)) == 0:
            chosen.append(Branch(kind, "DELETE", condition))
            continue
        number = draw(st.sampled_from((*NUMBER_OF_TARGET, *(NUMBER_OF_PAIR if is_pair else ()))))
        values: tuple[tuple[str, Term], ...] | None = (("n", number),)
        if is_pair and draw(st.booleans()):
            values = (("n", number), ("s", draw(st.sampled_from(TEXT_OF_PAIR))))
        chosen.append(Branch(kind, "UPDATE", condition, None if is_pair and draw(st.booleans()) else values))
    return chosen


class Repeated(Exception):
    """A row of the table is changed by two rows of the source."""


def merged(stored: Mapping[str, Row], source: list[Row], clauses: list[Branch]) -> dict[str, Row]:
    """Return the rows after a MERGE by key."""
    result = dict(stored)

    def apply(kind: str, s: Row | None, t: Row | None) -> bool:
        for clause in clauses:
            if clause.kind != kind or (clause.condition and clause.condition.of(s, t) is not True):
                continue
            if clause.verb == "DELETE":
                assert t is not None
                del result[t["id"]]
            elif clause.verb == "INSERT":
                assert s is not None
                if s["id"] in result:
                    raise Repeated
                result[s["id"]] = dict(s)
            else:
                assert t is not None
                changes = {name: term.of(s, t) for name, term in clause.values} if clause.values else dict(s or {})
                result[t["id"]] = {**t, **changes}
            return True
        return False

    for key, t in stored.items():
        matches = [s for s in source if s["id"] == key]
        acted = sum(apply("MATCHED", s, t) for s in matches[:1])
        for s in matches[1:]:
            acted += any(c.kind == "MATCHED" and (c.condition is None or c.condition.of(s, t) is True) for c in clauses)
        if acted > 1:
            raise Repeated
        if not matches:
            apply("NOT MATCHED BY SOURCE", None, t)
    for s in source:
        if s["id"] not in stored:
            apply("NOT MATCHED", s, None)
    return result


def create(kind: str, rows: list[Row], *, partitioned: bool) -> Table:
    table = Table.create(
        f"memory://statements/{next(NUMBERS)}",
        name="t",
        record_key="id",
        partition_by="part" if partitioned else (),
        schema=SCHEMA,
        table_type=kind,
    )
    for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        if half:
            table.upsert(pa.Table.from_pylist(half, SCHEMA))
    return table


def content(table: Table) -> list[Row]:
    rows: list[Row] = table.scan(columns=SCHEMA.names).to_arrow().to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def in_order(rows: Mapping[str, Row]) -> list[Row]:
    return [rows[key] for key in sorted(rows)]


def built(table: Table, source: list[Row], clauses: list[Branch]) -> Any:
    merge = table.merge(pa.Table.from_pylist(source, SCHEMA), "source.id = target.id")
    for clause in clauses:
        when = clause.condition.sql if clause.condition else None
        values = None if clause.values is None else {name: term.sql for name, term in clause.values}
        if clause.kind == "NOT MATCHED":
            merge = merge.when_not_matched_insert_all(when)
        elif clause.kind == "NOT MATCHED BY SOURCE":
            merge = (
                merge.when_not_matched_by_source_delete(when)
                if clause.verb == "DELETE"
                else merge.when_not_matched_by_source_update(values or {}, when)
            )
        elif clause.verb == "DELETE":
            merge = merge.when_matched_delete(when)
        else:
            merge = merge.when_matched_update_all(when) if values is None else merge.when_matched_update(values, when)
    return merge


@given(
    kind=st.sampled_from(["COW", "MOR"]),
    partitioned=st.booleans(),
    stored=row_lists(unique=True),
    source=st.booleans().flatmap(lambda unique: row_lists(unique=unique)),
    clauses=branches(),
)
@examples(80)
def test_merge_agrees_with_a_model_of_dictionaries_and_with_duckdb(
    kind: str, partitioned: bool, stored: list[Row], source: list[Row], clauses: list[Branch]
) -> None:
    table = create(kind, stored, partitioned=partitioned)
    before = {row["id"]: row for row in stored}
    try:
        expected = merged(before, source, clauses)
    except Repeated:
        with pytest.raises(UserError, match="MERGE: "):
            built(table, source, clauses).execute()
        assert content(table) == in_order(before)
        return
    instants = len(table.timeline.writes())
    built(table, source, clauses).execute()
    assert content(table) == in_order(expected)
    assert len(table.timeline.writes()) <= instants + 1
    assert table.schema.names == SCHEMA.names
    assert in_duckdb(stored, source, clauses) == in_order(expected)


def in_duckdb(stored: list[Row], source: list[Row], clauses: list[Branch]) -> list[Row]:
    """Return the rows after the same MERGE in DuckDB."""
    connection = duckdb.connect()
    connection.register("stored_rows", pa.Table.from_pylist(stored, SCHEMA))
    connection.register("source", pa.Table.from_pylist(source, SCHEMA))
    connection.execute("CREATE TABLE target AS SELECT * FROM stored_rows")
    # DuckDB refuses clauses after a clause without condition.
    last = {clause.kind: number for number, clause in reversed(list(enumerate(clauses))) if clause.condition is None}
    reachable = [clause for number, clause in enumerate(clauses) if number <= last.get(clause.kind, number)]
    text = " ".join(clause.sql() for clause in reachable).replace("target.n <=> 1", "target.n IS NOT DISTINCT FROM 1")
    connection.execute(f"MERGE INTO target USING source ON source.id = target.id {text}")
    rows = connection.execute("SELECT id, part, n, s FROM target ORDER BY id").fetchall()
    return [dict(zip(SCHEMA.names, row, strict=True)) for row in rows]


@given(
    kind=st.sampled_from(["COW", "MOR"]),
    stored=row_lists(unique=True),
    where=st.none() | st.sampled_from(OF_TARGET),
    number=st.sampled_from(NUMBER_OF_TARGET),
    deletes=st.booleans(),
)
@examples(40)
def test_update_and_delete_agree_with_a_model_of_dictionaries(
    kind: str, stored: list[Row], where: Term | None, number: Term, deletes: bool
) -> None:
    table = create(kind, stored, partitioned=True)
    text = None if where is None else where.sql.replace("target.", "")
    chosen = [row for row in stored if where is None or where.of(None, row) is True]
    if deletes:
        table.delete_where(text or "true")
        expected = [row for row in stored if row not in chosen]
    else:
        table.update({"n": number.sql.replace("target.", "")}, text)
        expected = [{**row, "n": number.of(None, row)} if row in chosen else row for row in stored]
    assert content(table) == sorted(expected, key=lambda row: row["id"])
