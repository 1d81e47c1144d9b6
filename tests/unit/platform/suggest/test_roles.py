"""Candidates for keys, ordering and partitions, by the values and names of columns."""

from __future__ import annotations

from collections.abc import Hashable

from lakehouse.platform.suggest.document import legal_name, with_legal_names
from lakehouse.platform.suggest.roles import OrderingChoice, choose_key, choose_ordering, choose_partition
from lakehouse.platform.suggest.sample import Sample, SampledColumn

ROWS = 40


def sample_of(changes_rows: bool = False, name: str = "orders", **columns: tuple[str, list[Hashable]]) -> Sample:
    """Return a sample with these columns, each with its type and values."""
    made = tuple(
        SampledColumn(name=column, type=kind, values=values, key_type=kind)
        for column, (kind, values) in columns.items()
    )
    return Sample(name=name, columns=made, rows=len(made[0].values), ingest={}, changes_rows=changes_rows)


def numbers(modulo: int = ROWS) -> list[Hashable]:
    """Return one number for each row."""
    return [number % modulo for number in range(ROWS)]


def days(count: int = 5) -> list[Hashable]:
    """Return one day for each row."""
    return [f"2026-01-{1 + number % count:02d}" for number in range(ROWS)]


def test_key_prefers_a_unique_column_that_is_named_like_a_key() -> None:
    sample = sample_of(amount=("int", numbers()), order_no=("int", numbers()), code=("string", numbers()))
    key = choose_key(sample)
    assert (key.columns, key.is_unique) == (("order_no",), True)
    assert "unique in 40 sampled rows, never null; so are code, amount" in key.evidence[0]


def test_key_is_never_a_column_with_nulls_or_of_floats() -> None:
    values: list[Hashable] = [*numbers()[:-1], None]
    sample = sample_of(id=("int", values), price=("double", numbers()), text=("string", numbers()))
    assert choose_key(sample).columns == ("text",)


def test_key_of_several_columns_is_the_least_that_is_unique_with_further_ids_and_times() -> None:
    sample = sample_of(
        shop_id=("int", numbers(4)),
        at=("timestamp", [f"2026-01-01 10:{number // 4:02d}" for number in range(ROWS)]),
        customer_id=("int", numbers(7)),
        amount=("double", numbers(3)),
    )
    key = choose_key(sample)
    assert (key.columns, key.is_unique) == (("shop_id", "at", "customer_id"), True)
    assert "not sure: shop_id, at are unique together" in key.evidence[0]


def test_key_of_repeated_rows_is_not_unique_and_says_what_happens() -> None:
    key = choose_key(sample_of(a=("string", numbers(3)), b=("string", numbers(3))))
    assert not key.is_unique
    assert "NOT unique, 3 values in 40 sampled rows" in key.evidence[0]
    assert "operation: insert" in key.evidence[0]


def test_key_of_changes_is_the_column_named_id_although_it_repeats() -> None:
    sample = sample_of(changes_rows=True, seq=("int", numbers()), id=("int", numbers(5)))
    assert choose_key(sample).columns == ("id",)


def test_ordering_prefers_the_time_of_a_change_and_has_no_nulls() -> None:
    sample = sample_of(id=("int", numbers()), version=("int", numbers()), updated_at=("timestamp", days()))
    assert choose_ordering(sample, choose_key(sample)).column == "updated_at"
    lacking: list[Hashable] = [None, *days()[1:]]
    sample = sample_of(id=("int", numbers()), version=("int", numbers()), updated_at=("timestamp", lacking))
    ordering = choose_ordering(sample, choose_key(sample))
    assert ordering.column == "version"
    assert "version: by its name; never null, ascending in" in ordering.evidence[0]
    assert ordering.evidence[1] == "updated_at has no value in 1 rows"


def test_ordering_is_none_without_a_column_that_is_named_like_a_change() -> None:
    sample = sample_of(id=("int", numbers()), born=("date", days()))
    assert choose_ordering(sample, choose_key(sample)).column is None


def test_partition_is_the_day_of_the_creation_and_not_of_the_change() -> None:
    sample = sample_of(id=("int", numbers()), updated_at=("timestamp", days(9)), created_at=("timestamp", days()))
    key = choose_key(sample)
    partition = choose_partition(sample, key, choose_ordering(sample, key))
    assert partition.column == "created_at"
    assert partition.settings == {"type": "TIMESTAMP", "output_format": "yyyy-MM-dd"}
    assert "created_at: 5 days in 40 sampled rows, never null" in partition.evidence


def test_partition_by_the_ordering_column_needs_a_global_index() -> None:
    sample = sample_of(id=("int", numbers()), updated_at=("timestamp", days()))
    key = choose_key(sample)
    partition = choose_partition(sample, key, choose_ordering(sample, key))
    assert partition.column == "updated_at"
    assert "index: global_simple" in partition.evidence[1]


def test_partition_is_none_without_times_or_if_they_are_null() -> None:
    sample = sample_of(id=("int", numbers()))
    assert choose_partition(sample, choose_key(sample), OrderingChoice()).evidence == (
        "none: no column of dates or times",
    )
    lacking: list[Hashable] = [None, *days()[1:]]
    sample = sample_of(id=("int", numbers()), day=("date", lacking))
    assert choose_partition(sample, choose_key(sample), OrderingChoice()).evidence == ("none: day has nulls",)


def test_partition_by_epoch_seconds_states_their_unit() -> None:
    seconds: list[Hashable] = [1_769_850_000 + number for number in range(ROWS)]
    sample = sample_of(id=("int", numbers()), event_time=("bigint", seconds))
    partition = choose_partition(sample, choose_key(sample), OrderingChoice())
    assert partition.settings == {
        "type": "TIMESTAMP",
        "timestamp_type": "UNIX_TIMESTAMP",
        "output_format": "yyyy-MM-dd",
    }


def test_names_that_a_table_cannot_have_get_distinct_new_ones() -> None:
    assert [legal_name(name) for name in ("Größe", "2nd", "a b%", "", "Ñandú")] == [
        "grosse",
        "column_2nd",
        "a_bpercent",
        "column",
        "nandu",
    ]
    columns = {"a b": ("int", numbers()), "a-b": ("int", numbers()), "A_B": ("int", numbers())}
    renamed = with_legal_names(sample_of(**columns))  # type: ignore[arg-type]
    assert [(column.name, column.source_name) for column in renamed.columns] == [
        ("a_b_2", "a b"),
        ("a_b_3", "a-b"),
        ("A_B", ""),
    ]
    assert renamed.ingest["select"] == ["* EXCEPT (`a b`, `a-b`)", "`a b` AS a_b_2", "`a-b` AS a_b_3"]
