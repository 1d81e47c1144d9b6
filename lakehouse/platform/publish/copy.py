"""Copy the rows of a pinned version into Parquet files outside of the table."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from lakehouse.core.engine.progress import observed_stage
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.base.parquet_export import Copied, CopyContext, bins_of, copy_slices
from lakehouse.core.format.avro.schema import with_meta_fields
from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import LoadedTable, stage_of
from lakehouse.core.operations.read.queries import CompletedUpTo
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.core.timeline.publications import read_manifest
from lakehouse.errors import CorruptTableError
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.publication import PublishedPartition, Stage
from lakehouse.platform.publish.job import PublishJob, data_schema

_TASK_FILES = 2


def copy_partition(
    job: PublishJob, loaded: LoadedTable, engine: Engine, name: str, partition: PublishedPartition
) -> PublishedPartition:
    """Copy the rows of a partition's version into the folder `partition.copy`; return the changed partition.

    Args:
        job: the publication.
        loaded: the table.
        engine: runs the copy tasks.
        name: name of the partition.
        partition: the stored partition with its manifest.

    Raises:
        CorruptTableError: the manifest, or a file that it pins, is missing.
    """
    schema = table_schema(loaded, up_to=partition.version.instant)
    paths = read_manifest(loaded.env, partition.manifest)
    if paths is None or schema is None:
        raise CorruptTableError(
            f"{job.target}: {name} cannot be archived: its manifest {partition.manifest} is missing; publish it again",
            path=partition.manifest,
        )
    budget = job.policies.write.memory_budget_bytes
    read = slice_context(loaded, schema, version=CompletedUpTo(partition.version.completion), budget=budget // 2)
    columns = data_schema(job, loaded, schema)
    context = CopyContext(
        read=read,
        columns=columns,
        sort_by=job.spec.sort_by or _key_columns(loaded, with_meta_fields(schema).names),
        target=job.place,
        file_bytes=job.spec.file_bytes,
        budget_bytes=budget,
    )
    tasks = bins_of(partition.copy, slices_of_files(loaded, paths), _TASK_FILES * job.spec.file_bytes)
    unsized = [0] * len(tasks)
    with observed_stage(stage_of(loaded, f"copy of {name}", "task", unsized)) as running, running.tasks(unsized):
        copied = engine.run(partial(copy_slices, context), tasks)
    written: list[Copied] = [file for files in copied for file in files]
    return replace(
        partition,
        stage=Stage.PUBLISHING,
        manifest="",
        needs_copy=False,
        files=len(written),
        size_bytes=sum(file.size_bytes for file in written),
        reason="archived",
    )


def slices_of_files(loaded: LoadedTable, paths: tuple[str, ...]) -> tuple[FileSlice, ...]:
    """Return the file slices of a manifest, which lists the files of a slice together, base file first."""
    sizes = {
        file.path: file.size_bytes
        for partition in _partitions(paths)
        for file in loaded.env.storage.list_dir(partition)[0]
    }
    groups: dict[tuple[str, str], list[BaseFile | LogFile]] = {}
    for path in paths:
        partition, _, name = path.rpartition("/")
        file = parse_base_file(name, partition, sizes.get(path, 0)) or parse_log_file(
            name, partition, sizes.get(path, 0)
        )
        if file is None or path not in sizes:
            raise CorruptTableError(
                f"{loaded.env.storage.root}: {path}, which a published version needs, is missing", path=path
            )
        groups.setdefault((partition, file.file_id), []).append(file)
    file_slices = []
    for (partition, file_id), files in groups.items():
        base = next((file for file in files if isinstance(file, BaseFile)), None)
        logs = tuple(file for file in files if isinstance(file, LogFile))
        instant = base.instant if base is not None else logs[0].instant
        file_slices.append(FileSlice(partition=partition, file_id=file_id, base_instant=instant, base=base, logs=logs))
    return tuple(file_slices)


def _partitions(paths: tuple[str, ...]) -> list[str]:
    return sorted({path.rpartition("/")[0] for path in paths})


def _key_columns(loaded: LoadedTable, names: list[str]) -> tuple[str, ...]:
    """Return the record key columns; empty if one is nested, so that rows are sorted by the whole key."""
    keys = loaded.config.keys.record_key_fields
    return tuple(keys) if keys and all(key in names for key in keys) else ()
