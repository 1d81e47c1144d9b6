"""`lakehouse timeline show`: print instants, each with the table service or write that made it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.table import catalog_name, open_table
from lakehouse.core.metadata.key_changes import instant_ms
from lakehouse.core.operations.read.queries import instant_text
from lakehouse.core.operations.read.timeline_rows import TimelineFilter
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.display import count_text
from lakehouse.model.instant import State
from lakehouse.model.timeline_service import TimelineService
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.fleet_views.timeline import runs_of_instants
from lakehouse.spec.contracts.catalog import TimelineInstant, TimelineInstants
from lakehouse.spec.quantities import duration_text, parse_duration

_DURATION = re.compile(r"\s*\d+\s*[wdhmsWDHMS]")
_DIGITS = re.compile(r"\d{14}|\d{17}")
#: Other commands also use this name for the partition of an unpartitioned table.
_ROOT = "(root)"


def show(given: Given) -> None:
    """Print the newest instants of a table's active timeline or archive."""
    table = open_table(given.table)
    wanted = TimelineFilter(
        services=tuple(given.service),
        states=tuple(State[state.upper()] for state in given.state),
        since_ms=_moment(table, "--since", given.since),
        until_ms=_moment(table, "--until", given.until),
        partition="" if given.partition == _ROOT else given.partition,
        limit=given.limit,
        archived=given.archived,
    )
    document = _with_runs(given.table, table.inspection.instants(wanted))
    show_document(document, given.output, rows=[_row(instant) for instant in document.instants])
    if given.output == "text":
        _note(document, wanted)


def _moment(table: Table, flag: str, text: str | None) -> int | None:
    """Parse a time to UTC milliseconds: a duration before now, instant digits, or ISO 8601 (UTC if it has no zone)."""
    if text is None:
        return None
    if _DURATION.match(text):
        return table.loaded.env.clock.now_ms() - parse_duration(flag, text) * 1000
    try:
        digits = instant_text(text)
    except UserError:
        raise UserError(
            f"{flag} {text!r} is not a time; write a duration before now such as 2h or 1d12h, a time in UTC such as "
            "2026-01-31 or 2026-01-31T10:00, or the digits of an instant"
        ) from None
    return instant_ms(digits, table.loaded.config.timezone if _DIGITS.fullmatch(text) else "UTC")


def _with_runs(name: str, document: TimelineInstants) -> TimelineInstants:
    """Add the service runs that the catalog records to the instants, if the table is in a catalog."""
    identifier = catalog_name(name)
    if identifier is None:
        return document
    with load_catalog(identifier[0]) as catalog, catalog.database.reading() as session:
        runs = runs_of_instants(session, identifier[1], [instant.requested for instant in document.instants])
    instants = tuple(_with_run(instant, runs) for instant in document.instants)
    return replace(document, instants=instants)


def _with_run(instant: TimelineInstant, runs: Mapping[tuple[str, str], str]) -> TimelineInstant:
    # A savepoint has the requested time of its commit, so the matching run made the commit, not the savepoint.
    run = runs.get((instant.requested, instant.service))
    return instant if instant.run or run is None else replace(instant, run=run)


def _row(instant: TimelineInstant) -> dict[str, Any]:
    by = instant.run or instant.author or instant.engine
    return {
        "requested": instant.requested,
        "service": TimelineService(instant.service).word,
        "operation": instant.operation.lower().replace("_", " "),
        "state": instant.state.lower(),
        "took": _duration(instant.seconds),
        "rows": instant.rows,
        "files": instant.files,
        "bytes": instant.bytes,
        "by": by,
        "note": instant.note,
    }


def _duration(seconds: float | None) -> str | None:
    """Format a duration. Fractions of seconds are shown, because instants often take less than a minute."""
    if seconds is None:
        return None
    return f"{seconds:.1f} s" if seconds < 90 else duration_text(round(seconds))


def _note(document: TimelineInstants, wanted: TimelineFilter) -> None:
    shown, total = len(document.instants), document.total
    if total is None:
        print(f"({count_text(shown, 'instant')} of this partition; older ones were not searched: --limit all)")
    elif total > shown:
        print(f"(the newest {shown:,} of {total:,} instants; --limit all prints all)")
