"""A scan as a dataset of pyarrow: columns, filters, counts, one version, and errors."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.operations.read import scan
from lakehouse.core.operations.read.damage import ChangedWhileListedError, check_listing
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table.dataset import TableDataset
from lakehouse.core.table.table import Table
from lakehouse.errors import CleanedHistoryError, UnsupportedError, UserError
from tests.support.tables import SCHEMA, Shape, batch, make_env, make_table, row

COPY_ON_WRITE, MERGE_ON_READ = Shape(), Shape(type="MERGE_ON_READ")
shapes = pytest.mark.parametrize("shape", [COPY_ON_WRITE, MERGE_ON_READ], ids=lambda shape: shape.type)
P = pc.field("p")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[BaseFileReader]]:
    """Yield the base files that are open at each moment."""
    files: list[BaseFileReader] = []
    init, close = BaseFileReader.__init__, BaseFileReader.close

    def opening(self: BaseFileReader, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        files.append(self)

    def closing(self: BaseFileReader) -> None:
        files.remove(self)
        close(self)

    monkeypatch.setattr(BaseFileReader, "__init__", opening)
    monkeypatch.setattr(BaseFileReader, "close", closing)
    yield files


def filled(shape: Shape) -> Table:
    """Return a table with three partitions and an update of two rows."""
    table = make_table(shape)
    table.upsert(batch([row(f"k{n}", p="abc"[n % 3], v=f"v{n}", amount=float(n), at=n) for n in range(12)]))
    table.upsert(batch([row("k0", v="new", ts=2), row("k4", p="b", v="new", ts=2)]))
    return table


def ids(rows: pa.Table) -> list[str]:
    return sorted(rows.column("id").to_pylist())


@shapes
def test_dataset_returns_the_rows_of_the_scan(shape: Shape) -> None:
    table = filled(shape)
    expected = table.scan().to_arrow()
    dataset = table.scan().to_pyarrow_dataset()
    assert isinstance(dataset, ds.Dataset)
    assert dataset.schema == expected.schema
    assert dataset.schema.names == [*META_COLUMNS, *SCHEMA.names]
    assert dataset.to_table() == expected
    assert dataset.to_table() == expected
    reader = dataset.scanner().to_reader()
    assert reader.schema == expected.schema
    assert reader.read_all() == expected


@shapes
def test_columns_of_the_filter_need_not_be_in_the_result(shape: Shape) -> None:
    dataset = filled(shape).scan().to_pyarrow_dataset()
    scanner = dataset.scanner(["v", "id"], (pc.field("amount") > 3) & (P == "b"))
    assert scanner.projected_schema == pa.schema([SCHEMA.field("v"), SCHEMA.field("id")])
    plan: Any = scanner.plan()
    assert plan.schema.names == ["id", "p", "v", "amount"]
    rows = scanner.to_table()
    assert rows.schema == scanner.projected_schema
    assert ids(rows) == ["k10", "k7"]


@shapes
def test_filter_prunes_partitions(shape: Shape) -> None:
    dataset = filled(shape).scan().to_pyarrow_dataset()
    everything: Any = dataset.scanner().plan()
    narrow: Any = dataset.scanner(filter=P == "a").plan()
    assert everything.plan.slices.partition_count == 3
    assert narrow.plan.slices.partition_count == 1


def test_filter_is_exact_where_no_predicate_is_equivalent() -> None:
    dataset = filled(COPY_ON_WRITE).scan().to_pyarrow_dataset()
    assert ids(dataset.to_table(filter=pc.match_substring_regex(pc.field("v"), "[13]$"))) == ["k1", "k11", "k3"]
    assert ids(dataset.to_table(filter=pc.field(5) == "k1")) == ["k1"]


def test_projection_evaluates_expressions() -> None:
    dataset = filled(COPY_ON_WRITE).scan().to_pyarrow_dataset()
    scanner = dataset.scanner({"double": pc.add(pc.field("amount"), pc.field("amount"))}, pc.field("id") == "k3")
    assert scanner.projected_schema == pa.schema([("double", pa.float64())])
    assert scanner.to_table().to_pydict() == {"double": [6.0]}


def test_dataset_has_the_columns_and_the_condition_of_the_scan() -> None:
    dataset = filled(COPY_ON_WRITE).scan(["id", "v"], where="amount < 5 AND p = 'b'").to_pyarrow_dataset()
    assert dataset.schema.names == ["id", "v"]
    assert ids(dataset.to_table()) == ["k1", "k4"]
    assert ids(dataset.to_table(filter=pc.field("v") == "new")) == ["k4"]
    assert dataset.count_rows() == 2
    with pytest.raises(UserError, match="column 'amount' is not in the table"):
        dataset.scanner(filter=pc.field("amount") > 1)


def test_batch_size_bounds_the_rows_of_a_batch() -> None:
    dataset = filled(COPY_ON_WRITE).scan().to_pyarrow_dataset()
    sizes = [batch.num_rows for batch in dataset.to_batches(["id"], batch_size=2)]
    assert sum(sizes) == 12 and max(sizes) == 2


def test_filter_of_a_dataset_is_added_to_the_filter_of_a_scanner() -> None:
    dataset = filled(COPY_ON_WRITE).scan().to_pyarrow_dataset().filter(P == "a").filter(pc.field("amount") > 2)
    assert ids(dataset.to_table()) == ["k3", "k6", "k9"]
    assert ids(dataset.to_table(filter=pc.field("amount") < 9)) == ["k3", "k6"]
    assert dataset.count_rows() == 3


def test_rows_are_counted_by_footers(monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(COPY_ON_WRITE)
    dataset = table.scan().to_pyarrow_dataset()
    whole = dataset.to_table([META_COLUMNS[0]])

    def refuse(*_: object) -> None:
        raise AssertionError("a column was read")

    monkeypatch.setattr(BaseFileReader, "_batches", refuse)
    assert dataset.count_rows() == 12
    assert dataset.count_rows(use_threads=True) == 12
    assert table.scan().count() == 12
    # Files of one commit contain one commit time.
    table = make_table()
    table.upsert(batch([row(f"k{n}", p="abc"[n % 3]) for n in range(12)]))
    assert table.scan().to_pyarrow_dataset().scanner([META_COLUMNS[0]]).to_table().num_rows == 12
    monkeypatch.undo()
    assert whole.num_rows == 12 and len(whole.column(0).unique()) == 2


def test_commit_times_of_files_with_one_and_with_several_commits_are_right() -> None:
    for shape in (COPY_ON_WRITE, MERGE_ON_READ):
        table = filled(shape)
        expected = table.scan([META_COLUMNS[0]]).to_arrow()
        assert table.scan().to_pyarrow_dataset().to_table([META_COLUMNS[0]]) == expected


def test_slices_with_logs_are_merged_to_count_rows() -> None:
    table = filled(MERGE_ON_READ)
    table.delete(["k4"])
    dataset = table.scan().to_pyarrow_dataset()
    assert dataset.count_rows() == table.scan().count() == 11
    assert table.scan(["id"], where="p = 'b'").count() == 3
    assert dataset.count_rows(P == "b") == 3
    assert dataset.to_table([]).num_rows == 11
    assert dataset.to_table([]).column_names == []
    assert table.scan(read_optimized=True).to_pyarrow_dataset().count_rows() == 12


@shapes
def test_dataset_reads_one_version_after_later_commits(shape: Shape) -> None:
    table = filled(shape)
    dataset = table.scan().to_pyarrow_dataset()
    before = dataset.to_table()
    table.upsert(batch([row("k1", p="b", v="newer", ts=9), row("k99", p="b")]))
    assert dataset.to_table() == before
    assert dataset.count_rows() == 12
    assert dataset.count_rows(pc.field("v") == "newer") == 0
    earlier = table.commits()[0][0].requested
    assert table.scan(as_of=earlier).to_pyarrow_dataset().count_rows(pc.field("v") == "new") == 0
    assert table.scan().to_pyarrow_dataset().count_rows() == 13


def test_table_that_changes_while_it_is_listed_is_read_in_the_same_version(monkeypatch: pytest.MonkeyPatch) -> None:
    table = filled(COPY_ON_WRITE)
    dataset = table.scan().to_pyarrow_dataset()
    before = dataset.to_table()
    changes: list[object] = []

    def changing(*arguments: Any, **options: Any) -> Any:
        if not changes:
            changes.append(table.upsert(batch([row("k77"), row("k1", p="b", v="newest", ts=9)])))
            raise ChangedWhileListedError("the table changed")
        return check_listing(*arguments, **options)

    monkeypatch.setattr(scan, "check_listing", changing)
    assert dataset.to_table() == before
    assert changes


def test_version_that_a_restore_removed_is_an_error() -> None:
    table = filled(COPY_ON_WRITE)
    first = table.commits()[0][0].requested
    dataset, earlier = table.scan().to_pyarrow_dataset(), table.scan(as_of=first).to_pyarrow_dataset()
    table.restore(first)
    with pytest.raises(UserError, match=r"restored to a version before .* Call scan"):
        dataset.to_table()
    table.upsert(batch([row("k50")]))
    with pytest.raises(UserError, match=r"restored to a version before .* Call scan"):
        dataset.to_table()
    assert earlier.count_rows() == 12


@pytest.mark.parametrize("has_metadata", [False, True])
def test_cleaned_version_raises_a_clear_error(has_metadata: bool) -> None:
    shape = Shape(options={"hoodie.metadata.enable": str(has_metadata).lower(), "hoodie.clean.commits.retained": "1"})
    table = make_table(shape)
    table.upsert(batch([row("k1", v="first"), row("k2", p="b")]))
    dataset = table.scan().to_pyarrow_dataset()
    for number in range(4):
        table.upsert(batch([row("k1", v=f"v{number}", ts=5 + number)]))
    assert table.services.clean.run()
    with pytest.raises(CleanedHistoryError, match=r"call scan\(\) again"):
        dataset.to_table()
    with pytest.raises(CleanedHistoryError, match=r"call scan\(\) again"):
        dataset.count_rows()
    # Partition b has its file still.
    assert ids(dataset.to_table(filter=P == "b")) == ["k2"]


def test_type_changed_by_a_later_write_is_refused() -> None:
    schema = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("n", pa.int32())])
    table = make_table(schema=schema)
    table.upsert(pa.table({"id": ["a"], "p": ["a"], "ts": [1], "n": [1]}, schema=schema))
    dataset = table.scan().to_pyarrow_dataset()
    wide = schema.set(3, pa.field("n", pa.int64()))
    table.upsert(pa.table({"id": ["b"], "p": ["a"], "ts": [1], "n": [2**40]}, schema=wide))
    assert dataset.to_table(["id", "n"]).to_pydict() == {"id": ["a"], "n": [1]}
    assert table.scan().to_pyarrow_dataset().schema.field("n").type == pa.int64()


@shapes
def test_head_and_a_dropped_reader_close_their_files(shape: Shape, opened: list[BaseFileReader]) -> None:
    dataset = filled(shape).scan().to_pyarrow_dataset()
    assert dataset.head(2).num_rows == 2
    assert dataset.head(0).num_rows == 0
    assert dataset.head(99).num_rows == 12
    assert opened == []
    batches = dataset.to_batches()
    next(batches)
    assert opened
    batches.close()  # type: ignore[attr-defined]
    assert opened == []
    reader = dataset.scanner(filter=P == "a").to_reader()
    reader.read_next_batch()
    del reader
    assert opened == []


def test_incremental_reads_and_changes_are_datasets() -> None:
    table = make_table(Shape(options={"hoodie.table.cdc.enabled": "true"}))
    table.upsert(batch([row("k1"), row("k2", p="b")]))
    table.upsert(batch([row("k2", p="b", v="new", ts=2)]))
    newest = table.incremental().to_pyarrow_dataset()
    changes = table.incremental(format="cdc").to_pyarrow_dataset()
    assert ids(newest.to_table()) == ["k2"]
    assert newest.count_rows() == 1
    assert changes.schema.names == ["op", "ts_ms", "before", "after"]
    assert changes.to_table(["op"], filter=pc.field("after", "v") == "new").to_pydict() == {"op": ["u"]}
    table.upsert(batch([row("k1", ts=3)]))
    assert ids(newest.to_table()) == ["k2"]
    assert changes.count_rows() == 1


def test_empty_table_is_an_empty_dataset() -> None:
    dataset = make_table().scan().to_pyarrow_dataset()
    assert dataset.schema.names == [*META_COLUMNS, *SCHEMA.names]
    assert dataset.to_table(filter=P == "a").num_rows == 0
    assert dataset.count_rows() == 0
    assert make_table(schema=None).scan().to_pyarrow_dataset().count_rows() == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": ["idd"]}, "column 'idd' is not in the table.*Did you mean 'id'"),
        ({"filter": pc.field("idd") == "k1"}, "column 'idd' is not in the table.*Did you mean 'id'"),
        ({"filter": pc.field("id") == 1}, "does not fit the dataset"),
        ({"filter": "id = 'k1'"}, "filter is of type str"),
        ({"columns": {"x": pc.add(pc.field("id"), 1)}}, "does not fit the dataset"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"fragment_readhead": 1}, "unknown argument 'fragment_readhead'.*Did you mean 'fragment_readahead'"),
        ({"memory_pool": pa.default_memory_pool()}, "unknown argument 'memory_pool'"),
    ],
)
def test_wrong_arguments_are_errors_before_anything_is_read(arguments: dict[str, Any], message: str) -> None:
    dataset = make_table().scan().to_pyarrow_dataset()
    with pytest.raises(UserError, match=message):
        dataset.scanner(**arguments)


def test_rows_can_be_taken_sorted_and_joined_in_memory() -> None:
    dataset = filled(COPY_ON_WRITE).scan(["id", "amount"]).to_pyarrow_dataset()
    assert dataset.sort_by([("amount", "descending")]).head(1).to_pydict() == {"id": ["k11"], "amount": [11.0]}
    assert dataset.take([0, 3]).num_rows == 2
    assert dataset.join(dataset, "id", right_suffix="_right").count_rows() == 12


def test_only_fragment_has_all_rows_as_datafusion_reads_them() -> None:
    dataset = filled(MERGE_ON_READ).scan(["id", "amount"]).to_pyarrow_dataset()
    condition = pc.field("amount") > 5
    (fragment,) = dataset.get_fragments(condition)
    assert fragment.physical_schema == dataset.schema
    scanner = fragment.scanner(dataset.schema, columns=["id"], filter=condition, batch_size=2)
    assert scanner.projected_schema.names == ["id"]
    rows = pa.Table.from_batches(scanner.to_batches(), scanner.projected_schema)
    assert rows.sort_by("id").equals(dataset.to_table(["id"], filter=condition).sort_by("id"))


def test_uses_that_would_bypass_the_scanner_are_errors(tmp_path: Any) -> None:
    dataset = filled(MERGE_ON_READ).scan().to_pyarrow_dataset()
    (fragment,) = dataset.get_fragments()
    other_schema = pa.schema([("id", pa.int8())])
    for use in (
        lambda: dataset.files,
        lambda: dataset.replace_schema(SCHEMA),
        lambda: fragment.scanner(other_schema),
    ):
        with pytest.raises(UnsupportedError, match="merges log files"):
            use()
    with pytest.raises(UnsupportedError, match="another process"):
        pickle.dumps(dataset)
    with pytest.raises(UnsupportedError, match="schema of the table"):
        ds.dataset([dataset])
    for native in (ds.Scanner.from_dataset, lambda source: ds.UnionDataset(source.schema, [source])):
        with pytest.raises(NotImplementedError, match="use to_batches"):
            native(dataset).to_table()
    ds.write_dataset(dataset.scanner().to_reader(), tmp_path / "copy", format="parquet")
    assert ds.dataset(tmp_path / "copy").count_rows() == 12


def test_representation_names_the_table_and_the_filter() -> None:
    dataset = make_table().scan().to_pyarrow_dataset()
    assert isinstance(dataset, TableDataset)
    assert repr(dataset) == "dataset of events, 13 columns"
    assert repr(dataset.scanner(["id"], P == "a")) == 'scanner, 1 column, filter (p == "a")'


def test_rows_are_streamed_within_the_memory_budget(tmp_path: Any) -> None:
    budget, count = 16 << 20, 400_000
    options = {"lakehouse.write.memory.budget": str(budget), "hoodie.parquet.max.file.size": str(8 << 20)}
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", partition_by="p", options=options)
    texts = pa.array([f"{number:0200}" for number in range(1000)]).dictionary_encode()
    numbers = pa.array(range(count), pa.int64())
    v = pa.DictionaryArray.from_arrays(pc.bit_wise_and(numbers, 511).cast(pa.int32()), texts.dictionary)
    p = pc.bit_wise_and(numbers, 7).cast(pa.string())
    table.bulk_insert(pa.table({"id": numbers, "p": p, "v": v.cast(pa.string())}))
    del numbers, p, v, texts
    dataset = table.scan().to_pyarrow_dataset()
    start, most, rows, size = pa.total_allocated_bytes(), 0, 0, 0
    for part in dataset.to_batches(["id", "v"], filter=pc.field("id") > 5):
        most = max(most, pa.total_allocated_bytes() - start)
        rows, size = rows + part.num_rows, size + part.nbytes
    assert rows == count - 6
    assert size > 5 * budget
    assert most < 2 * budget


def test_use_of_a_dataset_needs_the_requests_of_a_scan() -> None:
    storage = CountingStorage(MemoryStorage("memory://counted/t"))
    table = make_table(env=make_env(storage=storage))
    table.upsert(batch([row("k1"), row("k2", p="b")]))
    table.scan().to_arrow()
    storage.reset()
    table.scan().to_arrow()
    of_scan = storage.counts()
    dataset = table.scan().to_pyarrow_dataset()
    storage.reset()
    dataset.to_table()
    assert storage.counts() == of_scan
