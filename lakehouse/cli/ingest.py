"""`lakehouse ingest run` and `stream`: ingestion jobs, submitted by Airflow or started in a shell."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

from lakehouse.cli.arguments import job_command
from lakehouse.cli.group import Given
from lakehouse.cli.ingest_runs import SERVICE, adopt, begin, end, record_failure, record_refusal, record_targets
from lakehouse.cli.specs import specs_in_force, with_warning
from lakehouse.cli.table import catalog_name, identified
from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.system.stop import JobStop
from lakehouse.core.table.opened_tables import OpenedTables
from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.ingest.check import check_ingest
from lakehouse.platform.ingest.idle import end_if_idle
from lakehouse.platform.ingest.replay import run_replay
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.platform.ingest.stream import Stop, Stream, run_stream, stop_by_signal
from lakehouse.platform.ingest.stream_files import open_lease
from lakehouse.platform.jobs.lineage import ingest_lineage, with_lineage
from lakehouse.platform.jobs.report import print_report
from lakehouse.platform.jobs.run import run_job
from lakehouse.platform.metastore.open import open_metastore
from lakehouse.platform.publish.sync import sync
from lakehouse.platform.services.metrics import Metrics, metrics
from lakehouse.spark.session import job_session
from lakehouse.spark.sources import storage_options_of
from lakehouse.spark.submitted import is_submitted, submitted_storage_options
from lakehouse.spec.command_check import check_command
from lakehouse.spec.contracts.job import IngestReport, JobError, JobStatus
from lakehouse.spec.contracts.lineage import JobLineage
from lakehouse.spec.job_command import IngestCommand, IngestJob, ReplayCommand, StreamCommand
from lakehouse.spec.options.creation import CREATE_OPTIONS
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.quantities import parse_duration
from lakehouse.spec.sources.stream import StreamSpec
from lakehouse.spec.table.location import location_of, stream_location
from lakehouse.spec.table.table_spec import TableSpec, load_spec

logger = logging.getLogger(__name__)
#: A function that returns the storage options.
_Access = Callable[[], Mapping[str, str]]
#: Run id of an ingestion that a person starts.
_BY_HAND = "ingest by hand"


def ingest(given: Given) -> int:
    """Run one ingestion and print its report."""
    return run_job(zoned(job_command(given, IngestCommand)), _work, _check, _end_if_idle)


def zoned(command: IngestCommand) -> IngestCommand:
    """Convert the data interval of a command to UTC. Bounds without an offset are in the time zone of the spec."""
    if command.interval_start is None or command.interval_end is None:
        return command
    try:
        spec, _ = _spec_of(command)
        section = spec.ingest
        zone = ZoneInfo("UTC" if section is None else section.timezone)
        start, end = (_in_zone(bound, zone) for bound in (command.interval_start, command.interval_end))
    except (LakehouseError, ValueError):
        # The job reads the spec again and reports this error.
        return command
    return replace(command, interval_start=start, interval_end=end)


def _in_zone(bound: str, zone: ZoneInfo) -> str:
    moment = datetime.fromisoformat(bound)
    return (moment.replace(tzinfo=zone) if moment.tzinfo is None else moment).astimezone(UTC).isoformat()


def stream(given: Given) -> int:
    """Ingest continuously; print a report per commit, and their sum at the end."""
    return run_job(job_command(given, StreamCommand), _stream_work, _check)


def _stream_work(command: StreamCommand) -> IngestReport:
    spec, warning = _spec_of(command)
    session = job_session(f"lakehouse ingest stream {spec.table}")
    env = Env(storage=open_storage(stream_location(spec, os.environ), storage_options_of(session)))
    stop, tables = Stop(), OpenedTables()
    with metrics() as measures, stop_by_signal(stop):
        report = run_stream(
            Stream(
                table=spec.ingestion_name,
                settings=_stream_settings(spec, command),
                run=lambda run_id: _recorded(spec, command.one_run(run_id), measures, tables=tables),
                done=lambda one: print_report(command, one),
                env=env,
                lock=open_lease(env, spec.input),
                stop=stop,
                run_id=command.run_id or f"ingest stream by hand/{env.ids.uuid()}",
                input=spec.input,
            )
        )
    report = with_warning(report, warning)
    print_report(command, report)
    return report


def _stream_settings(spec: TableSpec, command: StreamCommand) -> StreamSpec:
    """Return the interval and duration of a stream from the command, the spec, or the default, which has no end."""
    declared = None if spec.ingest is None else spec.ingest.stream
    settings = StreamSpec(run_for_s=0) if declared is None else declared
    if command.every is not None:
        settings = replace(settings, every_s=parse_duration("--every", command.every))
    if command.run_for is not None:
        settings = replace(settings, run_for_s=parse_duration("--run-for", command.run_for))
    return settings


def replay(given: Given) -> int:
    """Replay dead letters, and print the report of the commit."""
    return run_job(job_command(given, ReplayCommand), _work, _check)


def _work(command: IngestCommand | ReplayCommand) -> IngestReport:
    spec, warning = _spec_of(command)
    # This raises errors in the metrics settings before the ingestion starts.
    with metrics() as measures:
        report = with_warning(_recorded(spec, command, measures), warning)
    print_report(command, report)
    return report


def _end_if_idle(command: IngestCommand) -> IngestReport | None:
    """End a run that has nothing to read in the way of `_work`, and return its report. Return None if there is work."""
    spec, warning = _spec_of(command)
    try:
        idle = _idle(identified(spec), command)
    except LakehouseError as error:
        # The run itself raises this error again.
        record_refusal(spec, error, command.run_id or _BY_HAND)
        raise
    if idle is None:
        return None
    with metrics() as measures:
        report = with_warning(_recorded(spec, command, measures, idle=idle), warning)
    print_report(command, report)
    return report


def _idle(spec: TableSpec, command: IngestCommand) -> IngestReport | None:
    options = submitted_storage_options(os.environ)
    return end_if_idle(spec, command, environ=os.environ, storage_options=options)


def _check(command: IngestJob) -> tuple[str, ...]:
    check_command(command, os.environ)
    spec, _ = _spec_of(command)
    _sync(spec, command)
    return _checked(identified(spec), command)


def _checked(spec: TableSpec, command: IngestJob) -> tuple[str, ...]:
    options = submitted_storage_options(os.environ)
    return check_ingest(spec, command, environ=os.environ, storage_options=options)


def _spec_of(command: IngestJob) -> tuple[TableSpec, str]:
    """Load a spec from a file or a catalog. The second value is a warning if the catalog's spec differs from its file.

    If the table has several inputs, the spec contains only the input that the command names.
    """
    identifier = catalog_name(command.table)
    if identifier is None:
        return load_spec(Path(command.table).absolute()).of_input(command.input), ""
    with load_catalog(identifier[0]) as catalog:
        warning = "; ".join(specs_in_force(catalog, [identifier[1]]).values())
        entry = catalog.entry(identifier[1])
        identities = catalog.identities(entry.spec)
    return replace(entry.spec, location=entry.location, identities=identities).of_input(command.input), warning


def _recorded(
    spec: TableSpec,
    command: IngestCommand | ReplayCommand,
    measures: Metrics,
    *,
    tables: OpenedTables | None = None,
    idle: IngestReport | None = None,
) -> IngestReport:
    """Run one ingestion and record it in the catalog. The runs of a stream share open tables.

    `idle` is the report if the caller already determined that there is nothing to read.
    """
    run_id = command.run_id or _BY_HAND
    catalog, table_id, spec = begin(spec, run_id)
    try:
        sync = _sync(spec, command)
        for note in () if idle is not None else _checked(spec, command):
            logger.info("%s", note)
        # A stream already has a session, and spark-submit a JVM. For them the caller checks with --end-if-idle.
        looks = tables is None and not is_submitted(os.environ)
        if idle is None and looks and isinstance(command, IngestCommand):
            idle = _idle(spec, command)
        if idle is None:
            report, access = _run(spec, command, tables)
        else:
            report, access = idle, partial(submitted_storage_options, os.environ)
        # A run without new data also syncs, because an earlier sync may have failed.
        report = report if sync is None else sync(report, access)
        report = with_lineage(report, lambda: _lineage(spec, report, access()))
    except (Exception, JobStop) as error:
        problem = JobError.of(error.error if isinstance(error, JobStop) else error)
        failed = IngestReport(status=JobStatus.FAILED, table=spec.table, error=problem)
        measures.run(SERVICE, failed)
        end(catalog, table_id, run_id, failed)
        if spec.is_template:
            record_failure(spec, error.error if isinstance(error, JobStop) else error, run_id)
        raise
    measures.run(SERVICE, report)
    adopt(catalog, spec, report)
    end(catalog, table_id, run_id, report)
    if spec.is_template:
        record_targets(spec, report, run_id)
    return report


def _run(
    spec: TableSpec, command: IngestCommand | ReplayCommand, tables: OpenedTables | None
) -> tuple[IngestReport, _Access]:
    """Ingest in a Spark session. Return the report, and a function that returns the session's storage options."""
    session = job_session(f"lakehouse ingest {spec.table}")
    if isinstance(command, ReplayCommand):
        report = run_replay(session, spec, command, environ=os.environ)
    else:
        report = run_ingest(session, spec, command, environ=os.environ, tables=tables)
    return report, partial(storage_options_of, session)


def _lineage(spec: TableSpec, report: IngestReport, storage_options: Mapping[str, str]) -> JobLineage:
    if spec.is_template:
        return JobLineage()
    table = Table.open(location_of(spec, os.environ), storage_options=storage_options)
    return ingest_lineage(spec, table, os.environ, report.lineage)


def _sync(spec: TableSpec, command: IngestJob) -> Callable[[IngestReport, _Access], IngestReport] | None:
    """Return the function that syncs the table to the metastore. Return None if sync is disabled.

    Raises UserError if the client is not installed, or if no metastore is configured.
    """
    declared = {**spec.call_options(), **command.options}
    options = {key: value for key, value in declared.items() if key not in CREATE_OPTIONS}
    policy = parse_options(options).sync
    if not policy.enabled:
        return None
    open_metastore(policy).close()
    location = location_of(spec, os.environ)
    if not spec.is_template:
        return lambda report, access: _synced(report, location, options, access())
    place = f"{location.rstrip('/')}/"

    def each(report: IngestReport, access: _Access) -> IngestReport:
        storage_options = access()
        parts = tuple(
            one if one.status is JobStatus.FAILED else _synced(one, place + one.table, options, storage_options)
            for one in report.parts
        )
        warnings = [f"{one.table}: {one.warning}" for one in parts if one.warning]
        return replace(report, parts=parts, warning="; ".join(warnings))

    return each


def _synced(report: IngestReport, location: str, options: Mapping[str, str], access: Mapping[str, str]) -> IngestReport:
    """Sync an ingested table to the metastore; convert an error to a warning in the report.

    The rows are committed, so an error of the metastore must not fail the job. The next run syncs all changes.
    """
    try:
        table = Table.open(location, options=options, storage_options=access)
        with closing(open_metastore(table.services_as_loaded.policies.sync)) as metastore:
            sync(table, metastore)
    except Exception as error:
        unknown = not isinstance(error, LakehouseError)
        logger.warning("table %s: the sync to the metastore failed: %s", report.table, error, exc_info=unknown)
        return replace(report, warning=f"metastore sync: {type(error).__name__}: {error}")
    return report
