"""Check a job's command line and its table spec before any process starts.

The check needs no table and no storage, so Airflow runs it in the process of the task. `lakehouse ... --check` runs the
same check and then checks the stored table.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from lakehouse.errors import SettingError, UserError, nearest
from lakehouse.spec.job_command import (
    INGEST,
    PUBLISH,
    IngestCommand,
    IngestJob,
    JobCommand,
    PublishCommand,
    ReplayCommand,
    ServiceCommand,
    StreamCommand,
)
from lakehouse.spec.options.clustering import SORT_COLUMNS
from lakehouse.spec.options.creation import CREATE_OPTIONS
from lakehouse.spec.options.parser import check_known, parse_options
from lakehouse.spec.sources.file_source import FileSourceSpec
from lakehouse.spec.sources.interval_path import folders_of
from lakehouse.spec.sql_text import require_allowed_sql
from lakehouse.spec.table.location import location_of, resolve
from lakehouse.spec.table.services import SERVICES, require_by_partition, service_spec
from lakehouse.spec.table.table_spec import TableSpec, load_spec

#: Command classes of ingestions.
INGESTIONS = (IngestCommand, StreamCommand, ReplayCommand)
#: Sources whose dead letters can be replayed.
REPLAYED = ("files", "kafka")
_SPECS = (".yaml", ".yml")


def check_command(command: JobCommand, environ: Mapping[str, str]) -> None:
    """Check the verb, tables, options and interval of a command, and the spec files that it uses.

    Args:
        command: The command of the job.
        environ: The environment of the job, for `${VAR}` in locations and paths.

    Raises:
        UserError: The job could not run; the message names the value and the remedy.
    """
    if isinstance(command, ServiceCommand):
        _check_service(command)
    for name in command.tables:
        if not name.strip():
            raise UserError("the name of the table is empty; name a table spec, a location or namespace.table")
        if Path(name).suffix in _SPECS:
            check_declared(load_spec(Path(name)), command, environ)
        else:
            # The table's other options are stored in the table, so options that depend on each other are checked with
            # the table later.
            creates = isinstance(command, INGESTIONS)
            check_known(command.options, also_known=CREATE_OPTIONS if creates else frozenset())


def check_declared(spec: TableSpec, command: JobCommand, environ: Mapping[str, str]) -> None:
    """Check a command against the spec of its table; raise UserError as `check_command` does."""
    location_of(spec, environ)
    if isinstance(command, INGESTIONS):
        spec = spec.of_input(command.input or spec.input)
        written = {key: value for key, value in command.options.items() if key not in CREATE_OPTIONS}
        parse_options({**spec.call_options(), **written})
        _check_ingest(spec, command, environ)
        return
    policies = parse_options({**spec.call_options(), **command.options})
    if isinstance(command, PublishCommand):
        _check_publication(spec)
        return
    if service_spec(command.service).merge_on_read_only and spec.type != "MERGE_ON_READ":
        raise UserError(
            f"{spec.source or spec.table}: table {spec.table} is of type {spec.type}: it has no logs, so there is "
            f"nothing for {command.service}. Only merge-on-read tables need this service",
            table=spec.table,
        )
    if command.service == "clustering":
        _check_sort_columns(spec, policies.clustering.columns)


def _check_service(command: ServiceCommand) -> None:
    if command.service not in SERVICES:
        names = (*SERVICES, INGEST, PUBLISH)
        raise UserError(
            f"unknown job {command.service!r}.{nearest(command.service, names)} Known: {', '.join(names)}.",
            verb=command.service,
        )
    if command.partitions or command.interval is not None:
        require_by_partition(service_spec(command.service))


def _check_ingest(spec: TableSpec, command: IngestJob, environ: Mapping[str, str]) -> None:
    if spec.ingest is None:
        raise UserError(
            f"{spec.source or spec.table}: table {spec.table} declares no ingestion; add a section `ingest`",
            table=spec.table,
        )
    source = spec.ingest.source
    transform = [] if spec.ingest.transform is None else [spec.ingest.transform.sql]
    require_allowed_sql(transform, f"{spec.source or spec.table}: ingest.transform.sql", environ)
    require_allowed_sql(spec.ingest.select, f"{spec.source or spec.table}: ingest.select", environ)
    if isinstance(command, StreamCommand) and spec.ingest.is_by_interval:
        raise UserError(
            f"{spec.source or spec.table}: the source of table {spec.table} is read by data interval, and a stream "
            "reads from the checkpoint. Use `ingest run`, or a source without an interval",
            table=spec.table,
        )
    if isinstance(command, ReplayCommand):
        _check_replay(spec, command)
        return
    if not isinstance(source, FileSourceSpec):
        return
    path = resolve(source.path, environ, name="ingest.path")
    if command.interval is not None:
        once = spec.ingest.operation != "upsert"
        folders_of(path, *command.interval, once=once, timezone=spec.ingest.timezone)
    elif spec.ingest.is_by_interval:
        raise UserError(
            f"ingest.path {source.path!r} of table {spec.table} is read by data interval, and this run has none. Give "
            "--interval-start and --interval-end, or a path without placeholders",
            path=source.path,
        )


def _check_replay(spec: TableSpec, command: ReplayCommand) -> None:
    """Raise UserError if a replayed record could replace a newer row and the command has no --force."""
    assert spec.ingest is not None, "the caller checks it"
    if spec.ingest.source.KIND not in REPLAYED:
        raise UserError(
            f"table {spec.table}: dead letters of the source {spec.ingest.source.KIND!r} cannot be replayed; those of "
            f"{' and '.join(REPLAYED)} can",
            table=spec.table,
        )
    if spec.ingest.operation == "upsert" and not spec.ordering and not command.force:
        raise UserError(
            f"table {spec.table} has no ordering column, so a replayed record would replace a newer row of its key. "
            "Add 'ordering' to the spec, or give --force to accept that",
            table=spec.table,
        )


def _check_publication(spec: TableSpec) -> None:
    if spec.publication() is None:
        raise UserError(
            f"{spec.source or spec.table}: the spec of table {spec.table} has no section services.publish that is "
            "enabled; add one to publish its partitions",
            table=spec.table,
        )


def _check_sort_columns(spec: TableSpec, columns: tuple[str, ...]) -> None:
    """Check sort columns against the declared columns, unless the spec declares none or computes others."""
    if not spec.schema or (spec.ingest is not None and spec.ingest.select):
        return
    for name in columns:
        if name not in spec.schema and not name.startswith("_hoodie_"):
            raise SettingError(
                f"option {SORT_COLUMNS}: column {name!r} is not in `schema` of {spec.source or spec.table}."
                f"{nearest(name, spec.schema)}",
                setting=SORT_COLUMNS,
            )
