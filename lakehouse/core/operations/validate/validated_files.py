"""The deep part of a validation: reads every file of the newest slices, all change logs and the archive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from lakehouse.core.engine.progress import observed_stage
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.keys.key_uniqueness import KeyTask, check_keys, check_share, count_keys, key_shares
from lakehouse.core.files.log.slice_validation import CheckContext, CheckTask, check_changes, check_slice
from lakehouse.core.format.avro.schema import with_meta_fields
from lakehouse.core.format.file_names import parse_cdc_file
from lakehouse.core.format.partition_metadata import PARTITION_METADATA_NAME, parse_partition_metadata
from lakehouse.core.index.hash.places import KeyPlaces
from lakehouse.core.operations.load.archive_checks import read_archive
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.slices import load_visible, slices_of
from lakehouse.core.operations.load.table import LoadedTable, stage_of
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.core.operations.services.orphans import files_of_hudi, list_files
from lakehouse.core.operations.validate.bounds import check_bounds
from lakehouse.core.planning.key_ranges import RANGES_KEY, decode_ranges
from lakehouse.core.planning.orphans import Found
from lakehouse.core.planning.predicate import Range
from lakehouse.core.state.table_config import require_mergeable
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.errors import CorruptTableError, LakehouseError, UnsupportedError, UserError
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.instant import Action, Instant
from lakehouse.model.validation import Finding
from lakehouse.spec.options.policies import Policies

_MAX_EXAMPLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The result of one inspection: the loaded table, its findings, and the input of the deep part."""

    table: LoadedTable
    commits: Sequence[tuple[Instant, CommitMetadata]]
    sizes: Mapping[str, int]
    slices: tuple[FileSlice, ...]
    places: KeyPlaces
    findings: tuple[Finding, ...]


def seen_slices(table: LoadedTable, files: Iterable[Found]) -> tuple[tuple[FileSlice, ...], list[Finding]]:
    """Return the newest slices of groups that are not replaced, and findings for files of another table type."""
    data = [file.data for file in files if file.data is not None]
    findings = []
    if not table.config.is_merge_on_read:
        logs = [file for file in data if not isinstance(file, BaseFile) and not file.suffix]
        findings = [Finding(invariant="file.kind", problem="the table is copy-on-write", path=log.path) for log in logs]
        data = [file for file in data if isinstance(file, BaseFile)]
    visible = load_visible(table)
    groups = slices_of(table, data, visible)
    return tuple(slices[0] for group, slices in groups.items() if group not in visible.replaced), findings


def read_files(seen: Seen, engine: Engine, policies: Policies) -> tuple[int, list[Finding]]:
    """Read all newest slices, change logs and the archive; return the number of rows and the findings."""
    table = seen.table
    results = [*read_archive(table), *_read_partitions(seen)]
    change_findings = engine.run(partial(check_changes, table.env.storage), _changes(seen))
    results += [finding for findings in change_findings for finding in findings]
    try:
        schema = table_schema(table)
    except (LakehouseError, ValueError, KeyError, TypeError):
        # The shallow part reports a schema that cannot be read.
        schema = None
    if schema is None or not seen.slices:
        return 0, results
    # Like a reader, list the files after the timeline was loaded, and compare the rows of these slices.
    slices, _ = seen_slices(table, files_of_hudi(list_files(table)))
    context = CheckContext(
        read=slice_context(table, schema, budget=policies.write.memory_budget_bytes),
        layout=table.config.layout,
        has_keys=table.config.populate_meta_fields,
        places=seen.places,
        resizes=frozenset(i.requested for i in table.timeline.writes().where(action=Action.REPLACECOMMIT)),
    )
    tasks, unread = _tasks(seen.commits, slices, with_meta_fields(schema))
    sizes = [_size(task.file_slice) for task in tasks]
    with observed_stage(stage_of(table, "validation", "file slice", sizes)) as running, running.tasks(sizes):
        checked = engine.run(partial(check_slice, context), tasks)
    findings = [*results, *unread, *(finding for result in checked for finding in result.findings)]
    bare = [task.file_slice.base for task, result in zip(tasks, checked, strict=True) if not result.has_bloom]
    if bare and bare[0] is not None:
        problem = f"{len(bare)} base files have no bloom filter, such as this one"
        findings.append(Finding(invariant="file.bloom_absent", problem=problem, path=bare[0].path))
    rows = [(task.file_slice, result.rows) for task, result in zip(tasks, checked, strict=True)]
    findings += _check_uniqueness(table, engine, context, rows)
    findings += check_bounds(table, engine, slices, schema)
    return sum(result.rows for result in checked), findings


def _size(file_slice: FileSlice) -> int:
    return (0 if file_slice.base is None else file_slice.base.size_bytes) + file_slice.total_log_bytes


def check_global_keys(seen: Seen, engine: Engine, policies: Policies) -> list[Finding]:
    """Read the keys of all newest slices and return a finding if keys are in several partitions."""
    table = seen.table
    schema = table_schema(table)
    if schema is None or len({piece.partition for piece in seen.slices}) < 2:
        return []
    if not table.config.populate_meta_fields:
        return [Finding(invariant="unchecked", problem="keys were not compared: the table does not store them")]
    context = CheckContext(
        read=slice_context(table, schema, budget=policies.write.memory_budget_bytes), layout=table.config.layout
    )
    try:
        if any(piece.logs for piece in seen.slices):
            require_mergeable(table.config)
    except UnsupportedError as error:
        return [Finding(invariant="unchecked", problem=f"keys were not compared: {error.message}")]
    rows = sum(engine.run(partial(count_keys, context), seen.slices))
    shared = key_shares(seen.slices, rows, context.read.budget_bytes)
    sizes = [0] * len(shared)
    with observed_stage(stage_of(table, "validation of keys", "share", sizes)) as running, running.tasks(sizes):
        shares = engine.run(partial(check_share, context), shared)
    findings = [
        Finding(invariant="unchecked", problem=f"keys were not compared: {why}")
        for why in sorted({share.unread for share in shares if share.unread})
    ]
    count = sum(share.count for share in shares)
    if count:
        examples = [example for share in shares for example in share.examples][:_MAX_EXAMPLES]
        listed = "; ".join(f"{key!r} in {', '.join(map(repr, places))}" for key, places in examples)
        problem = f"{count} of {rows} keys are in several partitions: {listed}"
        findings.append(Finding(invariant="key.global", problem=problem))
    return findings


def _tasks(
    commits: Iterable[tuple[Instant, CommitMetadata]], slices: Sequence[FileSlice], schema: pa.Schema
) -> tuple[list[CheckTask], list[Finding]]:
    """Return a task for each slice, and the commits whose column ranges cannot be read."""
    findings: list[Finding] = []
    bases = {piece.base.path for piece in slices if piece.base is not None}
    stated: dict[str, tuple[int, Mapping[str, Range]]] = {}
    for instant, metadata in commits:
        try:
            ranges = decode_ranges(metadata.extra.get(RANGES_KEY), schema)
        except (UserError, ValueError, TypeError, AttributeError) as error:
            ranges = {}
            problem = f"the column ranges in the {instant.action} cannot be decoded: {error}"
            findings.append(Finding(invariant="file.column_ranges", problem=problem, instant=instant.requested))
        for stat in metadata.stats:
            if stat.path in bases:
                stated[stat.path] = stat.num_writes, ranges.get(stat.path, {})
    tasks = []
    for piece in slices:
        rows, ranges_of = stated.get(piece.base.path, (None, {})) if piece.base is not None else (None, {})
        tasks.append(CheckTask(file_slice=piece, rows=rows, ranges=ranges_of))
    return tasks, findings


def _check_uniqueness(
    table: LoadedTable,
    engine: Engine,
    context: CheckContext,
    rows: Sequence[tuple[FileSlice, int]],
) -> list[Finding]:
    """Check that keys are unique in each partition, or with a global index in the table.

    `rows` are the slices with their numbers of rows.
    """
    if not context.has_keys:
        return []
    try:
        if any(file_slice.logs for file_slice, _ in rows):
            require_mergeable(table.config)
    except UnsupportedError as error:
        return [Finding(invariant="unchecked", problem=f"keys were not compared: {error.message}")]
    scope: Callable[[FileSlice], str] = (lambda _: "") if context.places.in_table else (lambda s: s.partition)
    groups: dict[str, list[tuple[FileSlice, int]]] = {}
    for file_slice, count in rows:
        groups.setdefault(scope(file_slice), []).append((file_slice, count))
    keys = [KeyTask(slices=tuple(s for s, _ in group), rows=sum(n for _, n in group)) for group in groups.values()]
    return [finding for of_partition in engine.run(partial(check_keys, context), keys) for finding in of_partition]


def _read_partitions(seen: Seen) -> Iterator[Finding]:
    """Yield findings for partition metadata files that cannot be read or contain a wrong depth."""
    for partition in sorted({piece.partition for piece in seen.slices}):
        path = f"{partition}/{PARTITION_METADATA_NAME}".lstrip("/")
        if path not in seen.sizes:
            continue
        try:
            _, depth = parse_partition_metadata(seen.table.env.storage.get(path))
        except NotFoundError:
            continue
        except CorruptTableError as error:
            yield Finding(invariant="partition.metadata", problem=error.message, path=path)
            continue
        expected = partition.count("/") + 1 if partition else 0
        if depth != expected:
            problem = f"the file states depth {depth}, the depth of the path is {expected}"
            yield Finding(invariant="partition.metadata", problem=problem, path=path)


def _changes(seen: Seen) -> list[LogFile]:
    """Return the change logs of commits that exist on storage."""
    paths = [path for _, metadata in seen.commits for stat in metadata.stats for path in stat.cdc_files]
    parts = [(path.rpartition("/")[0], path.rpartition("/")[2]) for path in paths if path in seen.sizes]
    change_logs = [parse_cdc_file(name, partition, 0) for partition, name in parts]
    return [log for log in change_logs if log is not None]
