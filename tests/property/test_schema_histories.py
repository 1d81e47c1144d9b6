"""Random histories of batches with different versions of the schema: types, fields of structs and columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.table.table import Table
from tests.support.tables import examples, make_env

#: For each column its types in the order of promotion, and a function that makes a value of the type at a level.
#: Promotions in which a rewrite could round values are tested by examples, because their result depends on the time of
#: the rewrite.
LADDERS: dict[str, tuple[tuple[pa.DataType, ...], Callable[[int, int], Any]]] = {
    "n": ((pa.int32(), pa.int64(), pa.string()), lambda value, level: str(value) if level == 2 else value),
    "f": ((pa.float32(), pa.float64()), lambda value, level: value / 2),
    "m": (
        (pa.decimal128(10, 2), pa.decimal128(20, 4)),
        lambda value, level: Decimal(value).quantize(Decimal("0.01" if level == 0 else "0.0001")),
    ),
    "s": (
        (
            pa.struct([("a", pa.int32())]),
            pa.struct([("a", pa.int64())]),
            pa.struct([("a", pa.int64()), ("b", pa.list_(pa.int32()))]),
        ),
        lambda value, level: {"a": value} if level < 2 else {"a": value, "b": [value, None]},
    ),
    "l": (
        (pa.list_(pa.int32()), pa.list_(pa.int64()), pa.list_(pa.string())),
        lambda value, level: [str(value) if level == 2 else value, None],
    ),
}


@dataclass(frozen=True, slots=True)
class Batch:
    """Values by key, and the level of the type of each column; a column without a level is not in the batch."""

    values: dict[str, int | None]
    levels: dict[str, int]

    def table(self) -> pa.Table:
        """Return the batch as an Arrow table."""
        columns: dict[str, pa.Array] = {"id": pa.array(list(self.values))}
        for name, level in self.levels.items():
            kinds, make = LADDERS[name]
            columns[name] = pa.array([v if v is None else make(v, level) for v in self.values.values()], kinds[level])
        return pa.table(columns)


levels = st.fixed_dictionaries(
    {}, optional={name: st.integers(0, len(kinds) - 1) for name, (kinds, _) in LADDERS.items()}
)
batches = st.builds(
    Batch,
    st.dictionaries(st.sampled_from("abcde"), st.one_of(st.none(), st.integers(-99, 99)), min_size=1),
    levels,
)
options = st.fixed_dictionaries(
    {
        "hoodie.parquet.small.file.limit": st.sampled_from(["0", "100000000"]),
        "hoodie.copyonwrite.record.size.estimate": st.sampled_from(["256", "60000000"]),
        "lakehouse.write.memory.budget": st.sampled_from(["64000000", "500"]),
        "hoodie.index.type": st.sampled_from(["SIMPLE", "GLOBAL_SIMPLE"]),
        "hoodie.write.set.null.for.missing.columns": st.just("true"),
        "lakehouse.schema.type.change": st.just("any"),
    }
)


def shown(name: str, value: tuple[int, int] | None, level: int) -> Any:
    """Return the expected value of a column whose type is at `level`; `value` has a number and its level at write."""
    if value is None:
        return None
    number, arrived = value
    made = LADDERS[name][1](number, level)
    if name == "s" and arrived < 2 <= level:
        made["b"] = None
    return made


@examples(25)
@given(history=st.lists(batches, min_size=1, max_size=5), chosen=options)
def test_scan_returns_all_rows_in_the_current_types_of_the_table(history: list[Batch], chosen: dict[str, str]) -> None:
    env = make_env()
    table = Table.create(env.storage.root, name="t", record_key=["id"], options=chosen, env=env)
    rows: dict[str, dict[str, tuple[int, int] | None]] = {}
    reached: dict[str, int] = {}
    seen: list[tuple[str, list[str], list[dict[str, Any]]]] = []
    for batch in history:
        outcome = table.upsert(batch.table())
        for key, value in batch.values.items():
            rows[key] = {n: None if value is None else (value, level) for n, level in batch.levels.items()}
        for name, level in batch.levels.items():
            reached[name] = max(level, reached.get(name, 0))
        expected = [
            {"id": key, **{name: shown(name, rows[key].get(name), level) for name, level in reached.items()}}
            for key in sorted(rows)
        ]
        seen.append((outcome.instant.requested, [*reached], expected))
        for requested, names, content in seen:
            found = table.scan(["id", *names], as_of=requested).to_arrow().sort_by("id").to_pylist()
            assert found == content
        for name, level in reached.items():
            assert table.scan([name]).plan().plan.schema.field(name).type.equals(_stored(LADDERS[name][0][level]))


def _stored(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _stored(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_stored(field.type)) for field in kind])
    return kind
