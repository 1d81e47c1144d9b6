"""Load tables that Apache Hudi wrote, with their expected rows.

The README of the shared folder describes the manifest, the expected rows and the row hash.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lakehouse.core.format.avro.schema import META_COLUMNS
from tests.support.shared import fixtures, shared_dir

KEPT_META = ("_hoodie_commit_time", "_hoodie_record_key", "_hoodie_partition_path")


@dataclass(frozen=True, slots=True)
class FixtureTable:
    """One table of the manifest; `entry` is its JSON object."""

    name: str
    entry: dict[str, Any] = field(repr=False, hash=False, compare=False)

    @property
    def version(self) -> int:
        """The table version."""
        return int(self.entry["table_version"])

    @property
    def is_supported(self) -> bool:
        """Whether lakehouse reads the table's version and base file format."""
        e = self.entry
        return self.version in (6, 8, 9) and e["base_file_format"] == "PARQUET"

    @property
    def has_meta_fields(self) -> bool:
        """Whether the table's rows have meta columns."""
        return bool(self.entry["populate_meta_fields"] == "true")

    @property
    def times(self) -> list[dict[str, Any]]:
        """The manifest's entries for time travel reads."""
        return self.entry.get("as_of") or []

    @property
    def ranges(self) -> list[dict[str, Any]]:
        """The manifest's entries for incremental reads."""
        return self.entry.get("incremental") or []

    def names(self) -> list[str]:
        """Return the paths in the archive of the table."""
        with zipfile.ZipFile(fixtures(f"hudi_tables/{self.entry['zip']}")) as archive:
            return archive.namelist()

    def unpack(self, directory: Path) -> Path:
        """Extract the table below `directory` and return its path."""
        with zipfile.ZipFile(fixtures(f"hudi_tables/{self.entry['zip']}")) as archive:
            archive.extractall(directory)
        return directory / str(self.entry["root_in_zip"])

    def expected(self, part: str = "") -> pa.Table | None:
        """Return the expected rows of a read, or None if the fixture has none.

        `part` is `asof...`, `incr...`, `ro`, or empty for the snapshot.
        """
        path = fixtures("hudi_tables") / "expected" / f"{self.name}{part and '.'}{part}.parquet"
        return pq.read_table(path) if path.exists() else None


def load_fixture_tables() -> list[FixtureTable]:
    """Return all tables of the manifest; skip the calling test module if the shared folder is missing."""
    try:
        manifest = shared_dir() / "fixtures" / "hudi_tables" / "manifest.json"
    except pytest.skip.Exception as missing:
        pytest.skip(str(missing), allow_module_level=True)
    return [FixtureTable(table["name"], table) for table in json.loads(manifest.read_text())["tables"]]


def row_hash(rows: pa.Table, *, with_meta: bool = False) -> str:
    """Return a hash of the rows that does not depend on their order."""
    return hashlib.sha256("\n".join(canonical_rows(rows, with_meta=with_meta)).encode()).hexdigest()


def canonical_rows(rows: pa.Table, *, with_meta: bool = False) -> list[str]:
    """Return the rows as a sorted list of JSON texts, which does not depend on the order of rows and columns."""
    meta = KEPT_META if with_meta else ()
    # `_hoodie_is_deleted` is a column of the user's data, not a meta column.
    names = sorted(n for n in rows.column_names if n not in META_COLUMNS or n in meta)
    columns = [_texts(rows.column(name)) for name in names]
    labels = [f"{',' if i else '{'}{json.dumps(name)}:" for i, name in enumerate(names)]
    if not names:
        return ["{}"] * rows.num_rows
    pieces = [part for label, column in zip(labels, columns, strict=True) for part in (pa.scalar(label), column)]
    return sorted(pc.binary_join_element_wise(*pieces, pa.scalar("}"), "").to_pylist())


def _texts(column: pa.ChunkedArray) -> pa.Array:
    """Return each value as JSON text."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_boolean(array.type) or pa.types.is_integer(array.type):
        return pc.fill_null(array.cast(pa.string()), "null")
    render = _renderer(array.type)
    distinct = array.unique() if not pa.types.is_nested(array.type) else array
    if len(distinct) == len(array):
        return pa.array([render(value) for value in array.to_pylist()], pa.string())
    texts = pa.array([render(value) for value in distinct.to_pylist()], pa.string())
    return texts.take(pc.index_in(array, distinct, skip_nulls=False))


def _renderer(kind: pa.DataType) -> Callable[[Any], str]:
    return lambda value: json.dumps(_plain(value, kind), sort_keys=True, separators=(",", ":"))


def _plain(value: Any, kind: pa.DataType) -> Any:
    """Return a value in the JSON form that the README of the shared folder defines."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {f.name: _plain(value[f.name], f.type) for f in kind}
    if pa.types.is_map(kind):
        pairs = [[_plain(k, kind.key_type), _plain(v, kind.item_type)] for k, v in value]
        return sorted(pairs, key=lambda pair: json.dumps(pair[0]))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [_plain(item, kind.value_type) for item in value]
    if pa.types.is_timestamp(kind):
        return value.replace(tzinfo=None).isoformat(timespec="microseconds")
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return value.hex()
    if pa.types.is_floating(kind):
        return repr(float(value))
    if pa.types.is_decimal(kind) or pa.types.is_temporal(kind):
        return str(value)
    return value
