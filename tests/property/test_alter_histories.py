"""Random histories of column changes, writes and services agree with a dict of values by column number."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.table.table import Table
from tests.support.tables import examples, make_env

NAMES = ("a", "b", "c", "d")
TYPES = (pa.int32(), pa.int64(), pa.string())
KEYS = tuple(f"k{n}" for n in range(6))
#: A step: its kind, and two numbers that choose what it changes.
steps = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 999), st.integers(0, 999)), min_size=3, max_size=14)


class Model:
    """The expected columns and rows. Columns are numbered, and rows store values by number."""

    def __init__(self, kind: str) -> None:
        self.env = make_env()
        self.table = Table.create(
            self.env.storage.root,
            name="t",
            record_key=["id"],
            table_type=kind,
            schema=pa.schema([("id", pa.string()), ("a", pa.int32()), ("b", pa.string())]),
            options={"hoodie.parquet.small.file.limit": "0"},
            env=self.env,
        )
        self.columns: list[list[Any]] = [["a", 0, 0], ["b", 1, 2]]
        self.rows: dict[str, dict[int, Any]] = {}
        self.last = 1
        self.versions: dict[str, list[dict[str, Any]]] = {}

    def value(self, level: int, number: int) -> Any:
        return number if level < 2 else f"{number}"

    def upsert(self, first: int, second: int) -> None:
        """Write some columns of some rows; rows keep the others."""
        keys = [key for n, key in enumerate(KEYS) if (first >> n) & 1] or [KEYS[0]]
        chosen = [column for n, column in enumerate(self.columns) if (second >> n) & 1] or self.columns
        data: dict[str, Any] = {"id": keys}
        for name, number, level in chosen:
            values = [None if (second + n) % 7 == 0 else self.value(level, second + n) for n in range(len(keys))]
            data[name] = pa.array(values, TYPES[level])
            for key, value in zip(keys, values, strict=True):
                self.rows.setdefault(key, {})[number] = value
        self.table.upsert(pa.table(data))

    def write_new_column(self, first: int, second: int) -> None:
        """Write a column that the table lacks, which adds it."""
        free = [name for name in NAMES if name not in [column[0] for column in self.columns]]
        if not free:
            return
        name, level = free[first % len(free)], second % 3
        self.last += 1
        self.columns.append([name, self.last, level])
        key = KEYS[second % len(KEYS)]
        self.rows.setdefault(key, {})[self.last] = self.value(level, second)
        self.table.upsert(pa.table({"id": [key], name: pa.array([self.value(level, second)], TYPES[level])}))

    def alter(self, step: int, first: int, second: int) -> None:
        builder = self.table.alter()
        column = self.columns[first % len(self.columns)]
        free = [name for name in NAMES if name not in [each[0] for each in self.columns]]
        if step == 3 and free:
            builder.rename_column(column[0], free[second % len(free)])
            column[0] = free[second % len(free)]
        elif step == 4 and len(self.columns) > 1:
            builder.drop_column(column[0])
            self.columns.remove(column)
            if second % 2:
                self.last += 1
                builder.add_column(column[0], TYPES[second % 3])
                self.columns.append([column[0], self.last, second % 3])
        elif step == 5 and column[2] < 2:
            level = column[2] + 1 + second % (2 - column[2])
            builder.change_type(column[0], TYPES[level])
            if level == 2:
                for row in self.rows.values():
                    value = row.get(column[1])
                    row[column[1]] = None if value is None else str(value)
            column[2] = level
        elif step == 6:
            builder.move_column(column[0], first=bool(second % 2))
            self.columns.remove(column)
            self.columns.insert(0 if second % 2 else len(self.columns), column)
        else:
            return
        builder.execute()

    def step(self, step: int, first: int, second: int) -> None:
        if step <= 2:
            self.upsert(first, second)
        elif step <= 6:
            self.alter(step, first, second)
        elif step == 7:
            self.write_new_column(first, second)
        elif step == 8:
            key = KEYS[first % len(KEYS)]
            self.table.delete([key])
            self.rows.pop(key, None)
        elif self.table.config.is_merge_on_read and first % 2:
            self.table.services.compaction.run(force=True)
        else:
            self.table.services.clustering.run(force=True)

    def expected(self) -> list[dict[str, Any]]:
        return sorted(
            (
                {"id": key} | {name: row.get(number) for name, number, _ in self.columns}
                for key, row in self.rows.items()
            ),
            key=repr,
        )

    def check(self) -> None:
        """Compare all rows, and the rows that two conditions on each column select."""
        expected, names = self.expected(), ["id", *(name for name, _, _ in self.columns)]
        assert [name for name in self.table.schema.names if name != "id"] == names[1:]
        assert read(self.table, names) == expected
        for name, _, level in self.columns:
            nulls = [row for row in expected if row[name] is None]
            assert read(self.table, names, where=f"{name} is null") == nulls
            values = [row[name] for row in expected if row[name] is not None]
            if values:
                text = f"'{values[0]}'" if level == 2 else values[0]
                matches = [row for row in expected if row[name] == values[0]]
                assert read(self.table, names, where=f"{name} = {text}") == matches
        writes = self.table.timeline.writes().by_completion()
        if writes:
            self.versions[writes[-1].requested] = deepcopy(expected)


def read(table: Table, names: list[str], **scan: Any) -> list[dict[str, Any]]:
    return sorted(table.scan(names, **scan).to_arrow().to_pylist(), key=repr)


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@examples(30)
@given(history=steps)
def test_random_changes_and_writes_agree_with_a_dict(kind: str, history: list[tuple[int, int, int]]) -> None:
    model = Model(kind)
    model.upsert(63, 77)
    model.check()
    for step in history:
        model.step(*step)
        model.check()
    assert not model.table.validate(deep=True).findings
    fresh = Table.open(model.table.location, env=model.env)
    for instant, expected in model.versions.items():
        rows = sorted(fresh.scan(as_of=instant).to_arrow().to_pylist(), key=repr)
        plain = [{name: value for name, value in row.items() if not name.startswith("_hoodie")} for row in rows]
        assert sorted(({k: row[k] for k in sorted(row)} for row in plain), key=repr) == sorted(
            ({k: row[k] for k in sorted(row)} for row in expected), key=repr
        )
    outcome = fresh.alter().add_column("last", "int").execute()
    assert isinstance(outcome, Committed)
