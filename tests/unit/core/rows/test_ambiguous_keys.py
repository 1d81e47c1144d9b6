"""Keys of several columns: values that give different rows one key are refused, or escaped if the table declares it."""

from __future__ import annotations

from itertools import combinations, product
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.rows.keys import record_keys, refuse_ambiguous_keys
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.keys import KEY_ENCODING, KeyConfig, KeyEncoding, KeyGeneratorType
from tests.support.tables import examples, make_env

FIELDS = ("a", "b", "c")
#: Pairs of different rows that have one key in Hudi's form.
COLLISIONS = [
    (("x,b:y", "z"), ("x", "y,b:z")),
    ((None, "v"), ("__null__", "v")),
    (("", "v"), ("__empty__", "v")),
    (("v", None), ("v", "__null__")),
]
ESCAPED = {KEY_ENCODING: "escaped"}


def config(encoding: KeyEncoding, fields: tuple[str, ...] = FIELDS) -> KeyConfig:
    """Return the config of a composite key."""
    return KeyConfig(generator=KeyGeneratorType.COMPLEX, record_key_fields=fields, encoding=encoding)


def rows_of(*rows: tuple[str | None, ...], v: int = 1) -> pa.Table:
    """Return rows of text columns a, b (and c), and a value."""
    columns = {
        name: pa.array(values, pa.string())
        for name, values in zip(FIELDS[: len(rows[0])], zip(*rows, strict=True), strict=True)
    }
    return pa.table({**columns, "v": [v] * len(rows)})


def table_of(options: dict[str, str] | None = None, **declared: Any) -> Table:
    """Return a new table with the key (a, b)."""
    env = make_env(storage=MemoryStorage())
    return Table.create(env.storage.root, name="t", record_key=["a", "b"], options=options, env=env, **declared)


def stored(table: Table) -> set[tuple[Any, ...]]:
    """Return the rows of a table."""
    found = table.scan(["a", "b", "v"]).to_arrow().to_pylist()
    assert len(found) == len({(row["a"], row["b"]) for row in found})
    return {(row["a"], row["b"], row["v"]) for row in found}


def is_refused(rows: pa.Table, fields: tuple[str, ...] = FIELDS) -> bool:
    """Return whether a write would refuse the rows."""
    try:
        refuse_ambiguous_keys(rows, config(KeyEncoding.CHECKED, fields))
    except UserError:
        return True
    return False


PIECES = ("x", ",", ":", "b", ",b:", ",c:", "a:", "_", "__null__", "__empty__", "%", "%2C", "%5F")
VALUES = st.none() | st.lists(st.sampled_from(PIECES), max_size=4).map("".join)


@given(st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=2, max_size=8, unique=True))
@examples(200)
def test_rows_that_are_not_refused_have_different_keys(rows: list[tuple[str | None, ...]]) -> None:
    kept = [row for row in rows if any(row) and not is_refused(rows_of(row))]
    if kept:
        assert len(set(record_keys(rows_of(*kept), config(KeyEncoding.CHECKED)).to_pylist())) == len(kept)


@given(st.lists(st.tuples(VALUES, VALUES, VALUES), min_size=2, max_size=8, unique=True))
@examples(200)
def test_escaped_keys_of_different_rows_differ(rows: list[tuple[str | None, ...]]) -> None:
    kept = [row for row in rows if any(row)]
    if kept:
        assert len(set(record_keys(rows_of(*kept), config(KeyEncoding.ESCAPED)).to_pylist())) == len(kept)


def test_check_refuses_each_value_of_a_collision_and_no_other_value() -> None:
    """Uses all short texts of the relevant characters: the check is necessary, and not wider than necessary."""
    alphabet = ["x", ",b:", ",", ":", "__null__"]
    texts = [None, *("".join(pieces) for n in (1, 2) for pieces in product(alphabet, repeat=n))]
    rows = [row for row in product(texts, repeat=2) if any(row)]
    keys = record_keys(rows_of(*rows), config(KeyEncoding.HUDI, ("a", "b"))).to_pylist()
    by_key: dict[str, list[tuple[str | None, ...]]] = {}
    for row, key in zip(rows, keys, strict=True):
        by_key.setdefault(key, []).append(row)
    colliding = [row for found in by_key.values() if len(found) > 1 for row in found]
    assert len(colliding) > 20
    for first, second in (pair for found in by_key.values() for pair in combinations(found, 2)):
        assert is_refused(rows_of(first), ("a", "b")) or is_refused(rows_of(second), ("a", "b"))
    plain = ["x,:", ":x,", "a:x", "12:30", "Doe, Jane", ",b", "b:", "__nul", "__null__x", "%2C"]
    assert not is_refused(rows_of(*((text, text) for text in plain)), ("a", "b"))


@pytest.mark.parametrize(("first", "second"), COLLISIONS)
@pytest.mark.parametrize("verb", ["upsert", "insert", "bulk_insert"])
def test_colliding_rows_are_refused_in_one_batch_and_in_two_batches(
    verb: str, first: tuple[str | None, ...], second: tuple[str | None, ...]
) -> None:
    table = table_of()
    with pytest.raises(UserError, match=r"key column '[ab]' that makes the record key ambiguous; first is row \d: \{"):
        getattr(table, verb)(rows_of(first, second))
    refused = 0
    for row in (first, second):
        try:
            getattr(table, verb)(rows_of(row))
        except UserError:
            refused += 1
    assert refused >= 1, "the second one cannot replace the first"
    assert len(table.timeline.writes()) == 2 - refused


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_escaped_table_keeps_rows_apart_through_updates_deletes_and_reopening(table_type: str) -> None:
    table = table_of(ESCAPED, table_type=table_type)
    rows = [row for pair in COLLISIONS for row in pair]
    distinct = list(dict.fromkeys(rows))
    table.upsert(rows_of(*distinct))
    again = Table.open(table.location, env=table.refresh().env)
    again.upsert(rows_of(distinct[0], v=2))
    again.delete(rows_of(distinct[1]).select(["a", "b"]))
    assert stored(again) == {(*distinct[0], 2), *((*row, 1) for row in distinct[2:])}
    assert again.config.raw[KEY_ENCODING] == "escaped"
    assert again.validate(deep=True).findings == ()


def test_deletes_of_ambiguous_keys_are_refused() -> None:
    table = table_of()
    table.upsert(rows_of(("x", "y")))
    with pytest.raises(UserError, match="ambiguous"):
        table.delete(rows_of(("x,b:y", "z")).select(["a", "b"]))


def test_write_with_another_encoding_than_the_table_is_refused() -> None:
    plain, escaped = table_of(), table_of(ESCAPED)
    with pytest.raises(UserError, match="are not escaped, which is fixed when a table is created"):
        plain.upsert(rows_of(("x", "y")), options=ESCAPED)
    with pytest.raises(UserError, match="are escaped, which is fixed"):
        escaped.upsert(rows_of(("x", "y")), options={KEY_ENCODING: "hudi"})
    with pytest.raises(UserError, match=r"lakehouse\.record_key\.encoding"):
        table_of({KEY_ENCODING: "escape"})


def test_hudi_encoding_accepts_such_rows_and_ignores_other_columns() -> None:
    table = table_of({KEY_ENCODING: "hudi"})
    table.upsert(rows_of(("x,b:y", "z")))
    assert stored(table) == {("x,b:y", "z", 1)}
    single = Table.create("", name="s", record_key="a", env=make_env(storage=MemoryStorage()))
    single.upsert(rows_of(("__null__", "v"), ("x,b:y", "w")))
    assert len(stored(single)) == 2


def test_escaped_keys_and_bucket_index_are_refused() -> None:
    with pytest.raises(UserError, match="engines that prune by bucket"):
        table_of(ESCAPED | {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"})


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_check_covers_each_type_of_text(kind: pa.DataType) -> None:
    column = pa.array(["__null__"], pa.string()).cast(kind)
    assert is_refused(pa.table({"a": column, "b": ["v"], "c": ["w"]}))
    assert not is_refused(pa.table({"a": pa.array([1]), "b": ["v"], "c": ["w"]}))
