"""TPC-H `lineitem` in process: loads, upserts and reads against deltalake, `pyarrow.dataset` and DuckDB.

The rows come from `tpchgen-cli` (PyPI), which the bench starts; `--rows` 3,000,000 is about scale factor 0.5. All sides
read and write local files, and use all cores.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from lakehouse.core.table.table import Table
from tests.bench.measure import Comparison, Side, compare, interleave
from tests.bench.setting import CODEC, Setting

#: Rows of `lineitem` at scale factor 1.
_ROWS_AT_ONE = 6_000_000
_KEY, _PARTITION, _ORDERING = "l_key", "l_year", "l_version"
_Q6 = (
    "l_shipdate >= '1994-01-01' and l_shipdate < '1995-01-01' and l_discount >= 0.05 and l_discount <= 0.07 "
    "and l_quantity < 24"
)
_SAME_ROW = f"s.{_KEY} = t.{_KEY} and s.{_PARTITION} = t.{_PARTITION}"
_SHARES = (0.001, 0.01, 0.1)


def run(setting: Setting) -> list[Comparison]:
    """Measure loads, upserts and reads; the peers run in turn with ours."""
    rows = lineitem(setting)
    bench = _Bench(setting, rows)
    lines = bench.loads()
    lines += bench.reads()
    for share in _SHARES:
        lines.append(bench.upsert(share))
    return lines + bench.merged_reads()


def lineitem(setting: Setting) -> pa.Table:
    """Return the rows, with a key, a partition (the year of shipping) and a version."""
    scale = setting.rows / _ROWS_AT_ONE
    home = setting.home / f"tpch-{scale:g}"
    path = home / "lineitem.parquet"
    if not path.exists():
        program = shutil.which("tpchgen-cli") or str(Path(sys.executable).with_name("tpchgen-cli"))
        subprocess.run(
            [program, "parquet", "-s", f"{scale:g}", "--tables", "lineitem", "--output-dir", str(home)], check=True
        )
    stored = pq.read_table(path)
    columns = {
        name: column.cast(pa.string()) if pa.types.is_string_view(column.type) else column
        for name, column in zip(stored.column_names, stored.columns, strict=True)
    }
    key = pc.binary_join_element_wise(
        columns["l_orderkey"].cast(pa.string()), columns["l_linenumber"].cast(pa.string()), "-"
    )
    year = pc.year(columns["l_shipdate"]).cast(pa.string())
    version = pa.array(np.ones(stored.num_rows, np.int64))
    return pa.table({**columns, _KEY: key, _PARTITION: year, _ORDERING: version})


@dataclass(frozen=True, slots=True)
class _Bench:
    """The rows and the directories of the tables."""

    setting: Setting
    rows: pa.Table

    def create(self, name: str, table_type: str = "COPY_ON_WRITE") -> Table:
        """Return a new empty table."""
        return Table.create(
            self.setting.fresh(f"tpch-{name}"),
            name="lineitem",
            record_key=_KEY,
            partition_by=_PARTITION,
            ordering=_ORDERING,
            table_type=table_type,
            options={"hoodie.parquet.compression.codec": CODEC},
        )

    def load(self, name: str, table_type: str = "COPY_ON_WRITE") -> Table:
        """Return a new table with all rows."""
        table = self.create(name, table_type)
        table.bulk_insert(self.rows)
        return table

    def load_delta(self, name: str) -> str:
        """Return the path of a new Delta table with all rows."""
        path = self.setting.fresh(f"tpch-{name}")
        write_deltalake(path, self.rows, partition_by=[_PARTITION])
        return path

    def loads(self) -> list[Comparison]:
        """Compare `bulk_insert` with a write of deltalake."""
        sides = [
            Side(name="bulk_insert", run=lambda _: self.load("load")),
            Side(name="deltalake write", run=lambda _: self.load_delta("load-delta")),
        ]
        return [self._compared("bulk_insert", sides, 0.7)]

    def reads(self) -> list[Comparison]:
        """Compare reads of a loaded table with `pyarrow.dataset` over its files, deltalake's dataset, and DuckDB."""
        table, delta = self.load("read"), DeltaTable(self.load_delta("read-delta"))
        files = base_files(table)
        lines = []
        every = [name for name in self.rows.column_names if name != _PARTITION]
        for what, columns in (("1 column", every[4:5]), ("2 columns", every[4:6]), ("all columns", every)):
            sides = [
                Side(name="lakehouse", run=lambda _, columns=columns: table.scan(columns).to_arrow()),  # type: ignore[misc]
                Side(
                    name="pyarrow.dataset, the same files",
                    run=lambda _, columns=columns: ds.dataset(files).to_table(columns),  # type: ignore[misc]
                ),
                Side(
                    name="deltalake dataset",
                    run=lambda _, columns=columns: delta.to_pyarrow_dataset().to_table(columns),  # type: ignore[misc]
                ),
            ]
            samples = interleave(sides, self.setting.rounds)
            lines.append(compare(what, samples, "lakehouse", sides[1].name, 1.1))
            lines.append(compare(what, samples, "lakehouse", sides[2].name))
        lines += self._filtered(table, delta, files)
        return lines + self._by_duckdb("copy-on-write", table, files, 1.5)

    def _filtered(self, table: Table, delta: DeltaTable, files: list[str]) -> list[Comparison]:
        """Compare the condition of TPC-H query 6 with the same condition over the same files."""
        field = pc.field
        day, decimal = pa.scalar(0, pa.int32()).cast(pa.date32()), pa.decimal128(15, 2)
        del day
        first, last = (
            pc.scalar(pc.strptime(text, "%Y-%m-%d", "s").cast(pa.date32())) for text in ("1994-01-01", "1995-01-01")
        )
        low, high, quantity = (pa.scalar(text).cast(decimal) for text in ("0.05", "0.07", "24.00"))
        condition = (
            (field("l_shipdate") >= first)
            & (field("l_shipdate") < last)
            & (field("l_discount") >= low)
            & (field("l_discount") <= high)
            & (field("l_quantity") < quantity)
        )
        columns = ["l_extendedprice", "l_discount"]
        expected = ds.dataset(files).to_table(columns, filter=condition)
        assert table.scan(columns, where=_Q6).to_arrow().num_rows == expected.num_rows > 0
        sides = [
            Side(name="lakehouse", run=lambda _: table.scan(columns, where=_Q6).to_arrow()),
            Side(
                name="pyarrow.dataset, the same files",
                run=lambda _: ds.dataset(files).to_table(columns, filter=condition),
            ),
            Side(
                name="deltalake dataset",
                run=lambda _: delta.to_pyarrow_dataset().to_table(columns, filter=condition),
            ),
        ]
        samples = interleave(sides, self.setting.rounds)
        return [compare("condition of query 6", samples, "lakehouse", side.name, 1.3) for side in sides[1:]]

    def _by_duckdb(self, what: str, table: Table, files: list[str], target: float) -> list[Comparison]:
        """Compare DuckDB over the lazy dataset with DuckDB over the Parquet files."""
        sql = "select l_shipmode, count(*), sum(l_quantity) from {} where l_orderkey % 10 = 0 group by 1 order by 1"
        filtered = "select l_shipmode, sum(l_quantity) from {} where l_quantity < 6 group by 1 order by 1"
        listed = f"read_parquet({files!r})"
        lines = []
        for name, text in (("group all rows", sql), ("filter 10 % and group", filtered)):

            def of_dataset(_: int, text: str = text) -> object:
                with duckdb.connect() as connection:
                    connection.register("lineitem", table.scan().to_pyarrow_dataset())
                    return connection.execute(text.format("lineitem")).fetchall()

            def of_files(_: int, text: str = text) -> object:
                with duckdb.connect() as connection:
                    return connection.execute(text.format(listed)).fetchall()

            if what == "copy-on-write":
                assert of_dataset(0) == of_files(0)

            sides = [
                Side(name="lazy dataset", run=of_dataset),
                Side(name="DuckDB, base files", run=of_files),
            ]
            lines.append(self._compared(f"DuckDB, {name}, {what}", sides, target))
        return lines

    def upsert(self, share: float) -> Comparison:
        """Compare an upsert of some rows with a merge of deltalake."""
        updates = self.updates(share)
        current: dict[str, Any] = {}
        ours, theirs = self.load(f"upsert-{share}"), self.load_delta(f"upsert-delta-{share}")

        def copy(path: str, name: str) -> str:
            target = self.setting.fresh(f"tpch-{name}")
            shutil.copytree(path.removeprefix("file://"), target)
            return target

        def merge(_: int) -> None:
            (
                DeltaTable(current["theirs"])
                .merge(
                    updates,
                    f"s.{_KEY} = t.{_KEY} and s.{_PARTITION} = t.{_PARTITION}",
                    source_alias="s",
                    target_alias="t",
                )
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .execute()
            )

        sides = [
            Side(
                name="upsert",
                before=lambda _: current.update(ours=copy(ours.location, "upserted")),
                run=lambda _: Table.open(current["ours"]).upsert(updates),
            ),
            Side(
                name="deltalake merge",
                before=lambda _: current.update(theirs=copy(theirs, "merged")),
                run=merge,
            ),
        ]
        return self._compared(f"upsert of {share:.1%}", sides, 0.7)

    def updates(self, share: float) -> pa.Table:
        """Return new versions of randomly chosen rows."""
        count = max(int(self.rows.num_rows * share), 1)
        chosen = np.sort(np.random.default_rng(7).choice(self.rows.num_rows, count, replace=False))
        rows = self.rows.take(pa.array(chosen))
        return rows.set_column(rows.column_names.index(_ORDERING), _ORDERING, pa.array(np.full(count, 2)))

    def merged_reads(self) -> list[Comparison]:
        """Compare a merge-on-read table with 10 % of its rows in logs with the compacted table."""
        table = self.load("logged", "MERGE_ON_READ")
        table.upsert(self.updates(0.1))
        path = self.setting.fresh("tpch-compacted")
        shutil.copytree(table.location.removeprefix("file://"), path)
        compacted = Table.open(path)
        compacted.services.compaction.run(force=True)
        lines = []
        for what, columns in (("1 column", ["l_quantity"]), ("all columns", self.rows.column_names)):
            read: Callable[[Table], Callable[[int], object]] = lambda t, c=columns: lambda _: t.scan(c).to_arrow()  # type: ignore[misc] # noqa: E731
            sides = [Side(name="10 % in logs", run=read(table)), Side(name="compacted", run=read(compacted))]
            lines.append(self._compared(f"merge-on-read, {what}", sides, 1.5))
        return lines + self._by_duckdb("10 % in logs", table, base_files(table), 2.0)

    def _compared(self, what: str, sides: list[Side], target: float) -> Comparison:
        samples = interleave(sides, self.setting.rounds)
        return compare(what, samples, sides[0].name, sides[1].name, target)


def base_files(table: Table) -> list[str]:
    """Return the paths of the base files of a table that was written once."""
    return sorted(str(path) for path in Path(table.location.removeprefix("file://")).glob("*/*.parquet"))
