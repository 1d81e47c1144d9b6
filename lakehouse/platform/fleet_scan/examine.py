"""Examine one Hudi table of a scan: its properties, its timeline, and the operations that it supports.

The checks are the checks of reads, writes and services themselves (`lakehouse.platform.services.support`), so a scan
and a later run agree. A table that cannot be opened is described by its properties.
"""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from lakehouse.core.env import Env
from lakehouse.core.operations.load.table import LoadedTable, load_table
from lakehouse.core.state.table_config import CDC_ENABLED, CDC_MODE
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import FileInfo, Storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_properties import read_properties
from lakehouse.errors import LakehouseError
from lakehouse.model.index_type import INDEX_TYPE
from lakehouse.model.instant import Timeline
from lakehouse.platform.catalog.existing_tables import spec_of
from lakehouse.platform.fleet_scan.discover import Place
from lakehouse.platform.fleet_scan.proposals import proposed_policies
from lakehouse.platform.services.support import READ, TableSupport, table_support
from lakehouse.spec.contracts.fleet_scan import Refusal, ScannedTable, TableFeature, TableKind

#: The operation of a refusal to register a table.
REGISTER = "register"
_METADATA = (".hoodie/", "_delta_log/")
#: File ids of the bucket index begin with the number of the bucket.
#: A number below 100,000: one random file id of 43 begins with eight digits, one of 43,000 with three zeros and five.
_BUCKET = re.compile(r"(000\d{5})-")
#: Properties by the name of their feature; the first property with a value counts.
_PROPERTIES: Mapping[str, tuple[str, ...]] = {
    "payload class": ("hoodie.compaction.payload.class", "hoodie.table.legacy.payload.class"),
    "merge mode": ("hoodie.record.merge.mode",),
    "merge strategy": ("hoodie.record.merge.strategy.id",),
    "partial update mode": ("hoodie.table.partial.update.mode",),
    "ordering": ("hoodie.table.ordering.fields", "hoodie.table.precombine.field"),
    "record key": ("hoodie.table.recordkey.fields",),
    "key generator": ("hoodie.table.keygenerator.type", "hoodie.table.keygenerator.class"),
    "index": ("hoodie.index.type",),
    "bucket engine": ("hoodie.index.bucket.engine",),
    "buckets": ("hoodie.bucket.index.num.buckets",),
    "metadata table": ("hoodie.table.metadata.partitions",),
    "metadata table in construction": ("hoodie.table.metadata.partitions.inflight",),
    "bootstrap": ("hoodie.bootstrap.base.path",),
    "base files": ("hoodie.table.base.file.format",),
    "table format": ("hoodie.table.format",),
}
#: Values of a feature that every table has.
_USUAL = {"base files": "PARQUET", "table format": "native"}
_FLAGS = {
    "no meta columns": ("hoodie.populate.meta.fields", "false"),
    "partition columns left out of files": ("hoodie.datasource.write.drop.partition.columns", "true"),
    "Hive-style partitions": ("hoodie.datasource.write.hive_style_partitioning", "true"),
}


def examine(root: Storage, place: Place, *, sizes: bool = False) -> ScannedTable:
    """Return the description of the table at a place below `root`; `sizes` lists all its files.

    A table that cannot be read is described, too: no error is raised for it.
    """
    location = f"{root.root.rstrip('/')}/{place.path}" if place.path else root.root
    if place.kind is TableKind.HUDI:
        described = _hudi(location, place)
    else:
        described = _other(location, place)
    if not sizes or place.kind is TableKind.UNREADABLE:
        return described
    files = [file for file in root.list(place.path) if _is_data(file, place.path)]
    return replace(described, files=len(files), bytes=sum(file.size_bytes for file in files))


def _is_data(file: FileInfo, path: str) -> bool:
    relative = file.path.removeprefix(f"{path}/" if path else "")
    return not relative.startswith(_METADATA) and not file.name.startswith(("_", ".hoodie_partition_metadata", ".crc"))


def _hudi(location: str, place: Place) -> ScannedTable:
    storage = open_storage(location)
    try:
        raw = read_properties(storage) or {}
    except LakehouseError as error:
        return _unreadable(location, error.message)
    version = raw.get("hoodie.table.version", "").strip()
    described = ScannedTable(
        location=location,
        kind=TableKind.HUDI,
        table=raw.get("hoodie.table.name", ""),
        version=int(version) if version.isdecimal() else None,
        type=raw.get("hoodie.table.type", "").upper(),
        partitioned_by=tuple(filter(None, raw.get("hoodie.table.partition.fields", "").split(","))),
    )
    try:
        loaded = load_table(Env(storage=storage))
        policies = Table.open(location, env=loaded.env).services_as_loaded.policies
        support = table_support(loaded, policies)
    except LakehouseError as error:
        return replace(
            described,
            features=_features_of(raw, None),
            refusals=(Refusal(operation=READ, reason=error.message.removeprefix(f"{location}: ")),),
            next=(f"not registered: {error.message.removeprefix(f'{location}: ')}",),
        )
    return _supported(described, loaded, support, place)


def _supported(described: ScannedTable, loaded: LoadedTable, support: TableSupport, place: Place) -> ScannedTable:
    refusals = {**support.refusals, **_refused_registration(loaded, described.location)}
    writes = loaded.timeline.writes().by_completion()
    keys = loaded.config.keys
    return replace(
        described,
        type=loaded.config.table_type,
        partitioned_by=keys.partition_fields,
        partitions=_partitions(loaded, place),
        newest_write=writes[-1].requested if writes else "",
        features=_features_of(loaded.config.raw, loaded.timeline),
        readable=support.is_readable,
        writable=support.is_writable,
        services=support.services,
        refusals=tuple(
            Refusal(operation=name, reason=reason.removeprefix(f"{described.location}: "))
            for name, reason in refusals.items()
        ),
        policies=proposed_policies(loaded, support.services) if support.is_readable else (),
    )


def bucket_numbers(table: LoadedTable, *, writes: int = 1) -> tuple[int, ...]:
    """Return the numbers of buckets in the file names of the newest `writes`; empty if they have other names.

    A number of 100,000 or more counts as another name: random file ids look like it.
    """
    numbers: set[int] = set()
    for instant in table.timeline.writes().by_completion()[-writes:]:
        try:
            files = table.store.commit(instant).stats
        except LakehouseError:
            # The checks of the table report a damaged commit; it is no evidence of buckets.
            continue
        matches = [_BUCKET.match(stat.file_id) for stat in files]
        if not all(matches):
            return ()
        numbers |= {int(match[1]) for match in matches if match is not None}
    return tuple(sorted(numbers))


def _refused_registration(table: LoadedTable, location: str) -> dict[str, str]:
    """Return why no spec can be derived from the properties of a table; empty if one can.

    Hudi does not store the index of a table, but a writer with another index than BUCKET would lose its keys.
    """
    try:
        spec_of(table.config, identifier="scan.table", location=location)
    except LakehouseError as error:
        return {REGISTER: error.message}
    if not table.config.raw.get(INDEX_TYPE, "").strip() and bucket_numbers(table):
        return {
            REGISTER: "the files are named by the bucket index, whose settings are not in the properties. Register the "
            f"table with `lakehouse table register --option {INDEX_TYPE}=BUCKET --option "
            "hoodie.bucket.index.num.buckets=<number of its jobs; 256 by default>`"
        }
    return {}


def _partitions(loaded: LoadedTable, place: Place) -> int | None:
    """Return the number of partitions if the listing of the root shows them; a slash in a value adds levels."""
    if not loaded.config.is_partitioned:
        return None
    single = len(loaded.config.keys.partition_fields) == 1
    return len(place.folders) if single and loaded.config.keys.hive_style else None


def _other(location: str, place: Place) -> ScannedTable:
    if place.kind is TableKind.UNREADABLE:
        return _unreadable(location, place.problem)
    if place.kind is not TableKind.PARQUET:
        name = place.kind.value.capitalize()
        reason = f"{name} tables are not read; convert the table with {name}'s own tools, or leave it as it is"
        refusal = Refusal(operation=READ, reason=reason)
        return ScannedTable(location=location, kind=place.kind, refusals=(refusal,), next=(f"skipped: {reason}",))
    flat = not place.columns
    return ScannedTable(
        location=location,
        kind=TableKind.PARQUET,
        partitioned_by=place.columns,
        partitions=len(place.folders) if len(place.columns) == 1 else None,
        files=len(place.files) if flat else None,
        bytes=sum(file.size_bytes for file in place.files) if flat else None,
        refusals=(Refusal(operation=READ, reason="Parquet files without a Hudi table"),),
        next=(f"lakehouse spec suggest {shlex.quote(location)}",),
    )


def _unreadable(location: str, problem: str) -> ScannedTable:
    refusal = Refusal(operation=READ, reason=problem)
    return ScannedTable(location=location, kind=TableKind.UNREADABLE, refusals=(refusal,), problem=problem)


def _features_of(raw: Mapping[str, str], timeline: Timeline | None) -> tuple[TableFeature, ...]:
    """Return the features in the properties of a table, and its pending instants; `timeline` is None if unreadable."""
    return tuple(TableFeature(feature=name, value=value) for name, value in _features(raw, timeline))


def _features(raw: Mapping[str, str], timeline: Timeline | None) -> Iterator[tuple[str, str]]:
    for name, keys in _PROPERTIES.items():
        value = next((raw[key].strip() for key in keys if raw.get(key, "").strip()), "")
        if value and value.upper() != _USUAL.get(name, "").upper():
            yield name, value.rpartition(".")[2] if "class" in keys[0] or name == "key generator" else value
    if raw.get(CDC_ENABLED, "").strip().lower() == "true":
        yield "CDC", raw.get(CDC_MODE, "").strip().lower() or "enabled"
    for name, (key, value) in _FLAGS.items():
        if raw.get(key, "").strip().lower() == value:
            yield name, "yes"
    if timeline is None:
        return
    pending = Counter(str(instant.action) for instant in timeline.where(pending=True))
    if pending:
        yield "pending instants", ", ".join(f"{count} {action}" for action, count in sorted(pending.items()))
    if timeline.savepoints():
        yield "savepoints", str(len(timeline.savepoints()))
