"""Apply the stored state of a publication to the metastore, with one call per batch of partitions."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from lakehouse.core.format.publication import SUCCESS
from lakehouse.core.operations.load.renamed_files import require_present_names
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.schema_history import reads_without_conversion
from lakehouse.core.timeline.publications import change_publication, read_publications
from lakehouse.errors import UserError
from lakehouse.model.publication import Publication, PublishedPartition, Stage
from lakehouse.platform.metastore.names import partition_name, same_location
from lakehouse.platform.metastore.protocol import HivePartition, HiveTable
from lakehouse.platform.metastore.published import STATE, TABLE
from lakehouse.platform.publish.job import PublishJob, hive_partition, hive_table

logger = logging.getLogger(__name__)


def ensure_table(job: PublishJob, loaded: LoadedTable) -> None:
    """Create database and table, or update the columns; refuse a table that does not belong to this publication."""
    schema = table_schema(loaded)
    if schema is None:
        raise UserError(f"{job.target}: {loaded.env.storage.root} has no columns yet; write to it first")
    require_present_names(loaded, f"the publication {job.target}", reads_without_conversion)
    wanted, metastore = hive_table(job, loaded, schema), job.metastore
    stored = metastore.table(wanted.database, wanted.name)
    if stored is None:
        metastore.create_database(wanted.database)
        if metastore.create_table(wanted):
            logger.info("%s: created in %s", job.target, metastore.name)
            return
        stored = metastore.table(wanted.database, wanted.name)
    if stored is None or stored.parameters.get(TABLE) != loaded.env.storage.root:
        owner = "dropped again" if stored is None else stored.parameters.get(TABLE) or "not of lakehouse"
        raise UserError(
            f"{metastore.name}: {job.target} exists and is {owner}, not a publication of "
            f"{loaded.env.storage.root}; choose another services.publish.table, or drop the existing table",
            table=job.target,
        )
    if stored.partition_columns != wanted.partition_columns:
        raise UserError(
            f"{metastore.name}: {job.target} is partitioned by {_listed(stored)}, but services.publish "
            f"partitions it by {_listed(wanted)}; drop the existing table, or choose another name",
            table=job.target,
        )
    if stored.columns != wanted.columns:
        metastore.alter_table(replace(stored, columns=wanted.columns))


def _listed(table: HiveTable) -> str:
    return ", ".join(column.name for column in table.partition_columns)


def apply_partitions(job: PublishJob, loaded: LoadedTable, wanted: Mapping[str, PublishedPartition]) -> tuple[str, ...]:
    """Add or alter partitions in the metastore to match their stored state; return the names that it changed."""
    if not wanted:
        return ()
    schema = table_schema(loaded)
    assert schema is not None, "ensure_table checked the columns"
    table = hive_table(job, loaded, schema)
    spec, metastore = job.spec, job.metastore
    names = _there(job, sorted(wanted))
    there = {
        partition_name([column.name for column in table.partition_columns], stored.values): stored
        for stored in metastore.partitions(spec.database, spec.table, names)
    }
    expected = {name: hive_partition(job, loaded, table.columns, name, partition) for name, partition in wanted.items()}
    changed = [name for name in sorted(there) if not _matches(there[name], expected[name])]
    parameters = {name: {**there[name].parameters, **expected[name].parameters} for name in changed}
    if changed:
        metastore.alter_partitions(
            spec.database, spec.table, [replace(expected[n], parameters=parameters[n]) for n in changed]
        )
    missing = [name for name in sorted(wanted) if name not in there]
    if missing:
        metastore.add_partitions(spec.database, spec.table, [expected[name] for name in missing])
    return (*changed, *missing)


def _there(job: PublishJob, wanted: Sequence[str]) -> list[str]:
    stored = set(job.metastore.partition_names(job.spec.database, job.spec.table))
    return [name for name in wanted if name in stored]


def _matches(there: HivePartition, expected: HivePartition) -> bool:
    """Return whether a partition of the metastore has the expected location, format and parameters."""
    return (
        same_location(there.location, expected.location)
        and there.format.input_format == expected.format.input_format
        and all(there.parameters.get(key) == value for key, value in expected.parameters.items())
    )


def _put_success(job: PublishJob, loaded: LoadedTable, partition: PublishedPartition) -> None:
    """Write a `_SUCCESS` file into the folder of a partition; engines skip names that begin with an underscore."""
    if partition.manifest:
        loaded.env.storage.put(f"{partition.manifest.rpartition('/')[0]}/{SUCCESS}", b"")
    else:
        job.place.put(f"{partition.copy}/{SUCCESS}", b"")


def record_published(job: PublishJob, loaded: LoadedTable, shown: Mapping[str, PublishedPartition]) -> None:
    """Store that the metastore shows these partitions, and retire their previous manifests and copies."""
    if not shown:
        return
    now_ms = loaded.env.clock.now_ms()
    if job.spec.success_file:
        for partition in shown.values():
            _put_success(job, loaded, partition)

    def change(publication: Publication) -> Publication:
        for name, partition in shown.items():
            if publication.partitions.get(name) != partition:
                continue
            stage = Stage.PUBLISHED if partition.manifest else Stage.ARCHIVED
            first_ms = partition.published_ms or now_ms
            settled = replace(partition, stage=stage, before=None, published_ms=first_ms, needs_copy=False)
            publication = publication.put(name, settled).heeded(name)
            before = partition.before
            if before is not None and (before.manifest, before.copy) != (partition.manifest, partition.copy):
                publication = publication.retire(before.manifest, before.copy, now_ms)
            logger.info("%s: %s %s at %s: %s", job.target, stage, name, partition.version.instant, partition.reason)
        return publication

    change_publication(loaded.env, job.target, change)


def repair(job: PublishJob, loaded: LoadedTable, *, skip: Collection[str]) -> tuple[str, ...]:
    """Restore partitions that another program, or a stale run, changed in the metastore; skip those in `skip`."""
    publication = read_publications(loaded.env)[job.target]
    _hide(job, [name for name, p in publication.partitions.items() if p.stage is Stage.WITHDRAWN])
    settled = {
        name: p
        for name, p in publication.partitions.items()
        if p.stage in (Stage.PUBLISHED, Stage.ARCHIVED) and name not in skip
    }
    repaired = apply_partitions(job, loaded, settled)
    for name in repaired:
        logger.warning("%s: another program changed %s in the metastore; it is restored", job.target, name)
    return repaired


def _hide(job: PublishJob, withdrawn: Sequence[str]) -> None:
    """Drop withdrawn partitions that a concurrent run published again."""
    there = _there(job, withdrawn) if withdrawn else []
    spec, metastore = job.spec, job.metastore
    ours = [
        name
        for name, stored in zip(there, metastore.partitions(spec.database, spec.table, there), strict=True)
        if STATE in stored.parameters
    ]
    if ours:
        logger.warning("%s: %s was withdrawn but still in the metastore; it is dropped", job.target, ", ".join(ours))
        metastore.drop_partitions(spec.database, spec.table, ours)
