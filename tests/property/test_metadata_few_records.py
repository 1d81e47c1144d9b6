"""Property tests: few records handled as plain values equal those that are computed on tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.avro.schema import arrow_to_avro
from lakehouse.core.format.hfile.entries import entry_mapping, entry_table, table_of
from lakehouse.core.format.hfile.reader import read_hfile
from lakehouse.core.format.hfile.writer import write_hfile
from lakehouse.core.format.metadata.bounds import has_statistics
from lakehouse.core.format.metadata.groups import shard_of, shards
from lakehouse.core.format.metadata.keys import ALL_PARTITIONS, column_stats_keys, partition_stats_keys
from lakehouse.core.format.metadata.merge import Layer, merge_files, merge_statistics, widened_statistics
from lakehouse.core.format.metadata.records import FILE_ROWS, decode_files, encode_files
from lakehouse.core.format.metadata.schema import HUDI_1_0, SCHEMA
from lakehouse.core.format.metadata.statistics import (
    STAT_ROWS,
    decode_statistics,
    encode_statistics,
    statistics_of,
    with_value_type,
    without_value_types,
)
from lakehouse.core.metadata.change import GROUPS, REMOVED, WRITTEN, MetadataChange
from lakehouse.core.metadata.partitions.column_stats import ColumnStatsPartition
from lakehouse.core.metadata.partitions.file_statistics import META, bounds_table
from lakehouse.core.metadata.partitions.files import FilesPartition
from lakehouse.core.metadata.partitions.partition_stats import PartitionStatsPartition
from lakehouse.core.metadata.partitions.protocol import Definition, MetadataCommit, Update
from lakehouse.core.metadata.read.layer_search import newest_statistics
from lakehouse.core.metadata.read.layers import FileLayer
from lakehouse.core.metadata.small.look_up import small_listing, small_statistics
from lakehouse.core.metadata.small.records import (
    Statistic,
    UnusualRecordError,
    decode_file_map,
    decode_statistic,
    encode_file_map,
    encode_statistic,
    file_suffix,
    hash64_of,
    partition_key,
)
from lakehouse.core.metadata.small.update import form_of, small_update, statistic_of
from lakehouse.core.state.data_files import LISTING
from lakehouse.core.state.table_config import parse_table_config
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.errors import UnsupportedError
from lakehouse.model.commit import ColumnBounds, WriteStat
from tests.support.tables import examples, make_env

SMALL = st.integers(-200, 200)
REALS = st.one_of(st.sampled_from([0.0, float("nan"), -1.5]), SMALL.map(float))
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3).map(str.encode)
#: Types of columns with their values in physical form.
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "flag": (pa.bool_(), st.booleans()),
    "small": (pa.int32(), SMALL),
    "big": (pa.int64(), st.integers(-(1 << 63), (1 << 63) - 1)),
    "single": (pa.float32(), REALS),
    "double": (pa.float64(), REALS),
    "text": (pa.string(), TEXTS),
    "raw": (pa.binary(), st.binary(max_size=3)),
    "day": (pa.date32(), SMALL),
    "moment": (pa.timestamp("us", "UTC"), SMALL),
    "price": (pa.decimal128(12, 3), st.one_of(SMALL, st.integers(-(10**12) + 1, 10**12 - 1))),
    "amount": (pa.decimal128(20, 2), st.one_of(SMALL, st.integers(-(10**20) + 1, 10**20 - 1))),
}
SCHEMA_OF_TABLE = pa.schema([(name, kind) for name, (kind, _) in KINDS.items()])
COLUMNS = (*META, *KINDS)
#: The columns with statistics by version of the index.
OF_VERSION = {
    version: tuple(name for name in COLUMNS if name in META or has_statistics(KINDS[name][0], version))
    for version in ("V1", "V2")
}
VERSIONS = st.sampled_from(["V1", "V2"])
CONFIG = parse_table_config(
    {
        "hoodie.table.name": "t",
        "hoodie.table.type": "COPY_ON_WRITE",
        "hoodie.table.version": "9",
        "hoodie.table.recordkey.fields": "text",
        "hoodie.table.partition.fields": "p",
    },
    "t",
)
PARTITIONS = st.sampled_from(["", "p=a", "p=\u00e4"])


def kind_of(column: str) -> pa.DataType:
    return KINDS[column][0] if column in KINDS else pa.string()


@st.composite
def bounds(draw: st.DrawFn, column: str) -> ColumnBounds:
    """Return bounds of a column: of values, of nulls, or not known."""
    values = KINDS[column][1] if column in KINDS else TEXTS
    pair = sorted(draw(st.lists(values, min_size=2, max_size=2)), key=lambda v: (v != v, v))
    count, nulls = draw(st.integers(0, 9)), draw(st.integers(0, 3))
    sizes = {"size_bytes": draw(st.integers(0, 300)), "raw_bytes": draw(st.integers(0, 300))}
    case = draw(st.sampled_from(["values", "values", "values", "nulls", "unknown"]))
    if case == "values":
        return ColumnBounds(low=pair[0], high=pair[1], nulls=nulls, values=count + nulls + 1, **sizes)
    return ColumnBounds(
        low=None, high=None, nulls=nulls, values=nulls + (case == "unknown"), known=case == "nulls", **sizes
    )


@st.composite
def write_stats(draw: st.DrawFn, number: int, columns: Sequence[str]) -> WriteStat:
    is_partial = draw(st.integers(0, 5)) == 0
    held = draw(st.sets(st.sampled_from(columns))) if is_partial else set(columns)
    partition = draw(PARTITIONS)
    measured = {name: draw(bounds(name)) for name in columns if name in held}
    return WriteStat(
        partition=partition,
        file_id=f"f{number}",
        path=f"{partition}/f{number}_0-0-0_9.parquet".lstrip("/"),
        prev_commit=draw(st.sampled_from([None, "1"])),
        num_writes=5,
        size_bytes=10,
        bounds=measured,
        is_partial=is_partial,
    )


def rows_of(names: Sequence[tuple[str, str, ColumnBounds]], *, of_partition: bool, version: str) -> pa.Table:
    """Return stored rows of (column, name or partition, bounds); the key of a file is that of partition `p=a`."""
    tables = [STAT_ROWS.empty_table()]
    for column, name, found in names:
        values = bounds_table([name], [found], kind_of(column), tight=of_partition)
        of_column = pa.array([column])
        keys = (
            partition_stats_keys(of_column, pa.array([name]))
            if of_partition
            else column_stats_keys(of_column, pa.array(["p=a"]), pa.array([name]))
        )
        tables.append(statistics_of(values, of_column, keys, version=version, partition_stats=of_partition))
    return pa.concat_tables(tables)


@dataclass
class Stored:
    """A reader of the metadata table with given rows, for both ways."""

    rows: dict[str, pa.Table]

    def found(self, partition: str, keys: pa.Array) -> pa.Table:
        wanted = set(keys.cast(pa.string()).to_pylist())
        return self._picked(partition, lambda key: key in wanted)

    def small_statistics(self, partition: str, keys: Sequence[bytes]) -> dict[bytes, Any] | None:
        entries = encode_statistics(self.rows[partition])
        return small_statistics([FileLayer("x", (0, 0), written=entries)], keys)

    def _picked(self, partition: str, test: Any) -> pa.Table:
        rows = self.rows[partition]
        return rows.filter(pa.array([test(key) for key in rows.column("key").to_pylist()], pa.bool_()))


def outcome(compute: Callable[[str, MetadataCommit], Update | None], name: str, commit: MetadataCommit) -> Any:
    """Return the records of an update, or how it failed; None if the fast path does not take the commit."""
    try:
        update = compute(name, commit)
    except UnsupportedError:
        return "refused"  # Both ways name a column without known bounds, maybe not the same one.
    except NotFoundError:
        return "read"  # Bounds of texts are read from the files, which do not exist here.
    if update is None:
        return None
    entries = entry_mapping(update.entries)
    if update.rows is not None and entries:
        # Readers of the next commit take these rows instead of the decoded entries.
        rows = decode_statistics(entry_table(update.entries), SCHEMA)
        assert repr(update.rows.to_pylist()) == repr(rows.to_pylist())
    return entries, sorted(update.deletes.to_pylist())


@examples(200)
@given(data=st.data())
def test_statistics_of_few_files_equal_those_on_tables(data: st.DataObject) -> None:
    # Few columns, because one unusual column makes both ways the same.
    version = data.draw(VERSIONS)
    columns = tuple(sorted(data.draw(st.sets(st.sampled_from(OF_VERSION[version]), min_size=1, max_size=2))))
    stats = tuple(data.draw(write_stats(number, columns)) for number in range(data.draw(st.integers(0, 3))))
    old = [f"old{n}_0-0-0_1.parquet" for n in range(data.draw(st.integers(0, 2)))]
    in_files = [
        (column, name, data.draw(bounds(column)))
        for column in columns
        for name in old
        if data.draw(st.integers(0, 9)) > 0
    ]
    in_partitions = [
        (column, partition, data.draw(bounds(column)))
        for column in columns
        for partition in ("", "p=a")
        if data.draw(st.integers(0, 3)) > 0
    ]
    stored = Stored(
        {
            "column_stats": rows_of(in_files, of_partition=False, version=version),
            "partition_stats": rows_of(in_partitions, of_partition=True, version=version),
        }
    )
    replaced = data.draw(st.sets(PARTITIONS, max_size=2))
    live = [("p=a", name) for name in old] + [(stat.partition, stat.path.rpartition("/")[2]) for stat in stats]
    has_live = data.draw(st.booleans())

    def live_files(partitions: Sequence[str]) -> pa.Table | None:
        kept = [pair for pair in live if pair[0] in partitions]
        columns = [pa.array([pair[at] for pair in kept], pa.string()) for at in (0, 1)]
        return pa.table(columns, names=["partition", "name"]) if has_live else None

    commit = MetadataCommit(
        env=make_env(),
        config=CONFIG,
        instant="9",
        change=MetadataChange(
            operation="UPSERT",
            stats=stats,
            replaced=pa.table([sorted(replaced), ["g"] * len(replaced)], schema=GROUPS),
            removed_partitions=("p=a",) if data.draw(st.integers(0, 9)) == 0 else (),
            schema=arrow_to_avro(SCHEMA_OF_TABLE, table="t"),
        ),
        definitions={"column_stats": Definition(index_type="column_stats", source_fields=columns, version=version)},
        schema=SCHEMA_OF_TABLE,
        previous_schema=lambda: SCHEMA_OF_TABLE,
        reader=lambda: stored,
        is_last=data.draw(st.booleans()),
        live_files=live_files,
        stored_ranges=lambda columns, files: stored.rows["column_stats"],
    )
    for kind, name in ((ColumnStatsPartition(), "column_stats"), (PartitionStatsPartition(), "partition_stats")):
        few = outcome(small_update, name, commit)
        assert few is not None or name == "partition_stats", "rows of files never have to be computed on tables"
        if few is not None:
            assert few == outcome(kind.update, name, commit)


def flat(row: Statistic) -> list[Any]:
    """Return the values of a row; a NaN, which is not equal to itself, as a text."""
    values = [*row.low, *row.high, *(value for value in row if not isinstance(value, tuple))]
    return [value if value == value else "NaN" for value in values]


_KEPT = "lakehouse.core.metadata.small.records._statistics"


@examples(100)
@given(version=VERSIONS, data=st.data())
def test_statistic_as_a_plain_value_has_the_bytes_of_the_kernels(version: str, data: st.DataObject) -> None:
    column = data.draw(st.sampled_from(OF_VERSION[version]))
    found, tight, of_partition = data.draw(bounds(column)), data.draw(st.booleans()), data.draw(st.booleans())
    values = bounds_table(["name"], [found], kind_of(column), tight=tight)
    rows = statistics_of(values, column, pa.array(["k"]), version=version, partition_stats=of_partition)
    form = form_of(kind_of(column), version)
    plain = statistic_of("name", column, found, form, tight=tight, of_partition=of_partition)
    stored = encode_statistics(rows).column("value")[0].as_py()
    with patch.dict(_KEPT, clear=True):
        decoded = decode_statistic(stored)
    with patch.dict(_KEPT, clear=True):
        assert encode_statistic(plain) == stored
        # The row that was encoded is kept.
        assert flat(decode_statistic(stored)) == flat(decoded)
    assert encode_statistic(decode_statistic(stored)) == stored
    entries = encode_statistics(rows)
    untyped = without_value_types(entries)
    assert (untyped is None) == (without_value_types({b"k": stored}) is None) == (version == "V2")
    if isinstance(untyped, pa.Table):
        # The short form has the bytes that the schema of Hudi 1.0 gives, and the null can be put back.
        assert untyped.equals(encode_statistics(rows, HUDI_1_0.files))
        assert without_value_types({b"k": stored}) == {b"k": untyped.column("value")[0].as_py()}
        assert with_value_type(untyped.column("value")[0].as_py()) == stored


FILES_OF = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.tuples(st.integers(1, 1 << 40), st.booleans()), max_size=3
)


@examples(100)
@given(layers=st.lists(st.one_of(st.dictionaries(PARTITIONS, FILES_OF), st.sets(PARTITIONS)), max_size=5))
def test_listing_of_few_files_equals_the_merge_of_tables(layers: list[Any]) -> None:
    few, whole = [], []
    for layer in layers:
        if isinstance(layer, set):
            keys = pa.array([path or "." for path in layer], pa.string())
            few.append(FileLayer("x", (0, 0), deletes=keys))
            whole.append(Layer(FILE_ROWS.empty_table(), keys))
            continue
        keys = [(path or ".").encode() for path in layer]
        entries = table_of(keys, [encode_file_map(files) for files in layer.values()])
        few.append(FileLayer("x", (0, 0), written=entries))
        whole.append(Layer(decode_files(entries, SCHEMA)))
    listed = small_listing(lambda: few, ["", "p=a", "p=\u00e4"], LISTING)
    assert listed is not None
    found = listed.to_pylist()
    merged = merge_files(whole).to_pylist() if whole else []
    expected = {(row["key"], row["name"], row["size_bytes"]) for row in merged if not row["deleted"] and row["name"]}
    assert {(row["partition"] or ".", row["name"], row["size_bytes"]) for row in found} == expected
    assert len(found) == len(expected)


@examples(60)
@given(files=FILES_OF, is_list=st.booleans())
def test_file_map_as_a_plain_value_has_the_bytes_of_the_kernels(
    files: dict[str, tuple[int, bool]], is_list: bool
) -> None:
    key = ALL_PARTITIONS if is_list else "p"
    rows = [
        {"key": key, "name": name, "size_bytes": size, "deleted": dead} for name, (size, dead) in files.items()
    ] or [{"key": key, "name": None, "size_bytes": 0, "deleted": False}]
    stored = encode_files(pa.Table.from_pylist(rows, FILE_ROWS)).column("value")[0].as_py()
    assert encode_file_map(files, partitions=is_list) == stored
    assert decode_file_map(stored) == files


@examples(60)
@given(
    written=st.lists(st.tuples(PARTITIONS, st.sampled_from("abc")), max_size=4, unique=True),
    removed=st.lists(st.tuples(PARTITIONS, st.sampled_from("def")), max_size=4, unique=True),
    gone=st.sets(PARTITIONS, max_size=2),
    operation=st.sampled_from(["UPSERT", "clean"]),
)
def test_records_of_few_files_equal_those_on_tables(
    written: list[tuple[str, str]], removed: list[tuple[str, str]], gone: set[str], operation: str
) -> None:
    change = MetadataChange(
        operation=operation,
        written=pa.table([*columns_of(written), [7] * len(written)], schema=WRITTEN),
        removed=pa.table(columns_of(removed), schema=REMOVED),
        removed_partitions=tuple(sorted(gone)),
    )
    commit = MetadataCommit(env=make_env(), config=CONFIG, instant="9", change=change)
    few, whole = small_update("files", commit), FilesPartition().update("files", commit)
    assert few is not None
    assert few.deletes.to_pylist() == whole.deletes.to_pylist()
    rows = [sorted(map(repr, decode_files(entry_table(u.entries), SCHEMA).to_pylist())) for u in (few, whole)]
    assert rows[0] == rows[1]
    assert sorted(few.entries) == entry_table(whole.entries)["key"].to_pylist()


def columns_of(pairs: list[tuple[str, str]]) -> list[pa.Array]:
    return [pa.array([pair[at] for pair in pairs], pa.string()) for at in (0, 1)]


@examples(100)
@given(
    layers=st.lists(
        st.one_of(
            st.dictionaries(st.sampled_from(COLUMNS[:4]), st.tuples(st.booleans(), st.integers(0, 9)), min_size=1),
            st.sets(st.sampled_from(COLUMNS[:4])),
        ),
        max_size=4,
    )
)
def test_look_up_of_few_statistics_equals_the_merge_of_tables(layers: list[Any]) -> None:
    few, whole = [], []
    for layer in layers:
        if isinstance(layer, set):
            keys = pa.array([partition_key(column, "p").decode() for column in sorted(layer)], pa.string())
            few.append(FileLayer("x", (0, 0), deletes=keys))
            whole.append(Layer(STAT_ROWS.empty_table(), keys))
            continue
        tables = []
        for column, (tight, number) in layer.items():
            found = ColumnBounds(low=str(number).encode(), high=b"x", nulls=0, values=3)
            if column == "flag":
                found = found._replace(low=False, high=True)
            values = bounds_table(["p"], [found], kind_of(column), tight=tight)
            keys = partition_stats_keys(pa.array([column]), pa.array(["p"]))
            tables.append(statistics_of(values, column, keys, version="V2", partition_stats=True))
        entries = encode_statistics(pa.concat_tables(tables))
        file = read_hfile(write_hfile(entries, schema=SCHEMA, created_ms=1))
        few.append(FileLayer("x", (0, 0), hfile=file))
        whole.append(Layer(decode_statistics(entries, SCHEMA)))
    if whole and whole[-1].rows.num_rows:
        # A newer row widens the stored one as the last layer of a merge does.
        below = merge_statistics(whole[:-1]) if whole[:-1] else STAT_ROWS.empty_table()
        newer = whole[-1].rows
        widened = widened_statistics(below, newer)
        of_newer = merge_statistics(whole).filter(pc.field("key").isin(newer.column("key").combine_chunks()))
        assert sorted(widened.to_pylist(), key=repr) == sorted(of_newer.to_pylist(), key=repr)
    wanted = [partition_key(column, "p") for column in COLUMNS[:4]]

    def decoded(file: FileLayer, held: pa.Array) -> Layer:
        if file.hfile is None:
            return Layer(STAT_ROWS.empty_table(), file.deletes)
        return Layer(decode_statistics(file.hfile.find(held), SCHEMA))

    newest = newest_statistics([(few, pa.array(sorted(wanted), pa.binary()))], decoded)
    if newest is not None:
        merged = merge_statistics(whole) if whole else STAT_ROWS.empty_table()
        assert sorted(newest.to_pylist(), key=repr) == sorted(merged.to_pylist(), key=repr)
    found_rows = small_statistics(few, wanted)
    if found_rows is None:
        return  # Rows that are not tight are united on tables.
    merged = encode_statistics(merge_statistics(whole)) if whole else encode_statistics(STAT_ROWS.empty_table())
    expected = dict(zip(*(merged.column(name).to_pylist() for name in ("key", "value")), strict=True))
    assert {key: encode_statistic(row) for key, row in found_rows.items()} == expected


@examples(60)
@given(column=st.text(max_size=20), partition=st.text(max_size=5), name=st.text(max_size=5), groups=st.integers(1, 9))
def test_keys_as_plain_values_equal_those_of_the_kernels(column: str, partition: str, name: str, groups: int) -> None:
    columns, partitions, names = (pa.array([text]) for text in (column, partition, name))
    key = partition_key(column, partition)
    assert key.decode() == partition_stats_keys(columns, partitions)[0].as_py()
    file_key = (hash64_of(column) + file_suffix(partition, name)).decode()
    assert file_key == column_stats_keys(columns, partitions, names)[0].as_py()
    assert shard_of(key, groups) == shards(pa.array([key]), groups)[0]


@examples(100)
@given(data=st.binary(max_size=60), cut=st.integers(0, 80))
def test_damaged_record_is_never_a_plain_value_of_other_content(data: bytes, cut: int) -> None:
    found = ColumnBounds(low=b"a", high=b"b", nulls=0, values=3)
    whole = encode_statistic(statistic_of("n", "text", found, form_of(pa.string()), tight=True, of_partition=True))
    for stored in (data, whole[:cut], whole[:cut] + data):
        for decode, encode in ((decode_statistic, encode_statistic), (decode_file_map, None)):
            try:
                value: Any = decode(stored)
            except UnusualRecordError:
                continue
            if encode is not None:
                assert decode_statistic(encode(value)) == value
