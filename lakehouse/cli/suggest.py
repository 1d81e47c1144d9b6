"""`lakehouse spec suggest` and `check`: a table spec from a sample of a source, and the check of a spec."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

from lakehouse.cli.group import Given
from lakehouse.cli.output import show, show_document
from lakehouse.cli.table import identified
from lakehouse.core.system.clock import SystemClock
from lakehouse.errors import UserError
from lakehouse.platform.suggest.document import several_tables_spec, suggested_spec
from lakehouse.platform.suggest.files import sample_files
from lakehouse.platform.suggest.sample import Limits, TableSet
from lakehouse.spec.contracts.job_check import JobCheck
from lakehouse.spec.contracts.spec_sample import SpecSample
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.secrets import connection_variable, refuse_secret_url
from lakehouse.spec.table.table_spec import TableSpec, load_spec


def suggest(given: Given) -> None:
    """Print a table spec for a source, or write it to a file."""
    target = None if given.to is None else Path(given.to)
    if target is not None and target.exists() and not given.replace:
        raise UserError(f"--to: {target} exists already. Give --replace to replace it, or another name", path=given.to)
    text = _suggested(given, Limits(rows=given.rows, files=given.files))
    if target is None:
        print(text, end="")
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    print(f"wrote {target}; read its comments, then: lakehouse spec check {shlex.quote(str(target))}")


def _suggested(given: Given, limits: Limits) -> str:
    if given.topic is not None and given.tables:
        raise UserError("--topic and --tables exclude each other: give the one that fits the source")
    if given.topic is not None:
        # Imported here, because only these sources need the client libraries.
        topics: Any = import_module("lakehouse.platform.suggest.kafka")
        sample = topics.sample_topic(given.source, given.topic, limits, os.environ)
        return suggested_spec(sample, table=given.name, location=given.location)
    if given.tables:
        databases: Any = import_module("lakehouse.platform.suggest.databases")
        sample = databases.sample_database(given.source, given.tables, limits, os.environ)
        write = several_tables_spec if isinstance(sample, TableSet) else suggested_spec
        return write(sample, table=given.name, location=given.location)
    _refuse_connection(given.source)
    if "://" in given.source:
        refuse_secret_url(given.source, "SOURCE", "Set environment variables that give access to the storage.")
    sample = sample_files(given.source, given.format or "", limits, os.environ, storage_options(given.source))
    return suggested_spec(sample, table=given.name, location=given.location)


def _refuse_connection(source: str) -> None:
    """Raise UserError for the id of a connection without a topic or tables."""
    if os.environ.get(connection_variable(source)) and not os.path.exists(source):
        raise UserError(
            f"SOURCE: {source!r} is a connection: give --topic of Kafka, or --tables of a database, such as "
            "--tables shop.orders",
            connection=source,
        )


def check(given: Given) -> None:
    """Check a spec without a Spark session, and print the plan of its first run.

    With --sample also print its first rows.
    """
    spec = load_spec(Path(given.spec).absolute())
    inputs = (given.input,) if given.input is not None else (*spec.inputs,) or (None,)
    notes: tuple[str, ...] = ()
    if spec.ingest is not None or spec.inputs:
        # Imported here, because the checks import all sources.
        check_ingest: Any = import_module("lakehouse.platform.ingest.check").check_ingest
        for name in inputs:
            part = spec.of_input(name)
            command = IngestCommand(table=given.spec, input=name)
            section = part.ingest
            if section is not None and section.is_by_interval:
                start, end = _yesterday()
                command = replace(command, interval_start=start, interval_end=end)
            place = getattr(section and section.source, "path", "")
            notes += check_ingest(
                identified(part), command, environ=os.environ, storage_options=storage_options(place, part.location)
            )
    else:
        notes = ("the spec declares no ingestion",)
    if given.sample:
        _show_sample(spec.of_input(inputs[0]), given)
        return
    document = JobCheck(command="spec check", tables=(spec.ingestion_name,), notes=notes)
    show_document(document, given.output)


def _show_sample(spec: TableSpec, given: Given) -> None:
    """Print the first rows and the bad records of a sample.

    Raise UserError if a run would fail because of bad records.
    """
    # Imported here, because only --sample starts Spark.
    session: Any = import_module("lakehouse.spark.session").job_session(f"lakehouse spec check {spec.table}")
    sample_ingestion: Any = import_module("lakehouse.platform.ingest.sample").sample_ingestion
    limits = Limits(rows=given.rows, files=given.files)
    sample: SpecSample = sample_ingestion(session, spec, os.environ, limits, shown=given.show)
    if given.output == "json":
        show_document(sample, given.output)
    else:
        print(f"{spec.ingestion_name}: {sample.scope}")
        print(f"{sample.rows:,} rows, {sample.bad_records:,} bad records. The first rows as they would be stored:\n")
        show(sample.first_rows, given.output)
        print("\ncolumns: " + ", ".join(f"{name} {kind}" for name, kind in sample.types.items()))
        for bad in sample.bad:
            print(f"\nbad record: {bad.place}\n  {bad.reason}\n  {bad.record}")
    allowed = 0 if spec.ingest is None else spec.ingest.max_bad_records
    if sample.bad_records > allowed:
        raise UserError(
            f"the sample has {sample.bad_records:,} bad records, and max_bad_records is {allowed:,}: a run would fail. "
            "Correct the spec or the records, or set max_bad_records in 'ingest'",
            bad_records=sample.bad_records,
        )


def storage_options(*places: str) -> dict[str, str]:
    """Return the storage options for some paths. Local paths need none, so Spark is not imported for them."""
    if not any("://" in place or "${" in place for place in places):
        return {}
    options: dict[str, str] = import_module("lakehouse.spark.submitted").submitted_storage_options(os.environ)
    return options


def _yesterday() -> tuple[str, str]:
    """Return the data interval of yesterday, for source paths that depend on the interval."""
    today = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC).replace(
        hour=0, minute=0, second=0, microsecond=0
    )
    return (today - timedelta(days=1)).isoformat(), today.isoformat()
