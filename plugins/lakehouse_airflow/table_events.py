"""Emits asset events for the commits of an ingestion: exactly one event per run.

Airflow emits the events of a task only when the task succeeds. A task whose last try was killed after its commit
therefore emits no event. A task that is cleared, or reprocessed by a backfill, would emit a second event. So a task
compares the newest commits with the events in Airflow:

    its own commit has an event           no event is emitted
    the previous commit has no event      a short process without Spark reads the commits since the newest one with an
                                          event, and an event is emitted for each run that made them

On a healthy table the report contains the instant of the previous commit, and Airflow has its event. No process is
started then. If the process fails, the task fails, and its retry or the next run compares again.

Airflow may have no event at all, because the table is older than the DAG, or because `airflow db clean` deleted it.
Then only commits of runs of the same DAG count, and only if they are younger than MAX_AGE.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import groupby
from typing import Any

from lakehouse.spec.contracts.ingest_commits import IngestCommit, IngestCommits
from lakehouse.spec.contracts.job import STORAGE_SETTINGS, IngestReport, JobReport, JobStatus
from lakehouse.spec.contracts.table_event import TableEvent
from lakehouse.spec.job_command import JobCommand
from lakehouse_airflow.assets import GROUP, TABLES, named_table_asset
from lakehouse_airflow.commands import run_command
from lakehouse_airflow.compat import Asset, AssetAlias, BaseOperator, emitted_events, timezone

log = logging.getLogger(__name__)

#: Alias through which a task emits events of earlier runs. Without it, a task can only emit one event per asset.
EARLIER = AssetAlias("lakehouse.earlier_commits", group=GROUP)
#: Maximum age of commits for which events are emitted if Airflow has no event of the asset.
MAX_AGE = timedelta(days=7)
#: Maximum number of events, and of commits, that are compared.
_COMPARED = 100
#: Number of leading parts of a run id that all commits of the run share. A stream adds parts per commit.
_RUN_PARTS = 3
_AIRFLOW_RUN = re.compile(r"([\w.~-]+)/[^/\s]+/[^/\s]+(/.*)?")
_SUMS = ("rows", "inserts", "updates", "deletes", "files", "bytes", "bad_records", "late_rows_dropped")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEvents:
    """Emits the asset events of a job's task.

    Attributes:
        dag_id: DAG of the task.
        command: Command of the job.
        storage: Storage settings as JSON, for the process that reads commits.
    """

    dag_id: str
    command: JobCommand
    storage: str

    def emit(self, operator: BaseOperator, context: Mapping[str, Any], report: JobReport) -> bool:
        """Emit the events of a successful job, and return whether there are any.

        Assets without an event are removed from the task's outlets, because Airflow emits an event for each outlet.
        """
        events, outlets = context["outlet_events"], list(operator.outlets)
        written = tuple(self._of_parts(report)) if TABLES in outlets else ()
        for asset, event in written:
            events[TABLES].add(asset, extra=event.to_mapping())
        has_events = bool(written)
        for outlet in (one for one in operator.outlets if isinstance(one, Asset)):
            new = self._of_batch(report, outlets, written) if report.parts else self._of_table(outlet, report)
            if not new:
                outlets.remove(outlet)
                continue
            has_events = True
            *earlier, last = new
            events[outlet].extra = last.to_mapping()
            for event in earlier:
                events[EARLIER].add(outlet, extra=event.to_mapping())
            outlets += [EARLIER] if earlier and EARLIER not in outlets else []
        operator.outlets = outlets
        return has_events

    def _of_parts(self, report: JobReport) -> Iterator[tuple[Asset, TableEvent]]:
        """Yield the events per table, for a job that writes several tables."""
        for part in report.parts:
            if part.instant is None and _previous(part) is None:
                continue
            asset = named_table_asset(part.table)
            for event in self._of_table(asset, part, target=part.table):
                yield asset, event

    def _of_batch(self, report: JobReport, outlets: Sequence[Any], written: Sequence[Any]) -> list[TableEvent]:
        """Return the event for the whole of a job that writes several tables."""
        has_new = bool(written) if TABLES in outlets else any(part.instant is not None for part in report.parts)
        return [TableEvent.of(self.command, report)] if has_new or report.status is JobStatus.COMMITTED else []

    def _of_table(self, asset: Asset, report: JobReport, *, target: str = "") -> list[TableEvent]:
        """Return the events of one table, oldest first."""
        emitted = _Emitted(asset, self.dag_id)
        has_committed = report.status is JobStatus.COMMITTED
        repeated, previous = None if has_committed else report.instant, _previous(report)
        lacking = {instant for instant in (repeated, previous) if instant and not emitted.has(instant)}
        own = [TableEvent.of(self.command, report)] if has_committed or repeated in lacking else []
        if previous not in lacking:
            return own
        commits = self._commits(target)
        if has_committed:
            # The report contains the commits after `previous`.
            places = [place for place, commit in enumerate(commits) if commit.instant == previous]
            commits = commits[places[0] :] if places else ()
        missing = [*_missing(commits, emitted)]
        for event in (events := [_event(group) for group in _by_run(missing)]):
            log.warning("%s: the asset event of the earlier commit %s was missing", asset.name, event.instant)
        # The commits of all tries of this run share one event.
        covered = repeated is not None and any(commit.instant == repeated for commit in missing)
        return [*reversed(events), *(() if covered else own)]

    def _commits(self, target: str) -> tuple[IngestCommit, ...]:
        """Return the newest commits of the ingestion of a table, newest first."""
        words = ["ingest", "commits", "--table", self.command.table, "--limit", str(_COMPARED), "--output", "json"]
        name = getattr(self.command, "input", None)
        words += ["--input", name] if name else []
        words += ["--target", target] if target else []
        return IngestCommits.from_json(run_command(words, variables={STORAGE_SETTINGS: self.storage})).commits


def _previous(report: JobReport) -> str | None:
    """Return the instant of the previous commit in an ingestion report; None for other jobs."""
    return report.previous if isinstance(report, IngestReport) else None


class _Emitted:
    """The events of an asset in Airflow."""

    def __init__(self, asset: Asset, dag_id: str) -> None:
        self.asset, self.dag_id = asset, dag_id

    @cached_property
    def newest(self) -> Mapping[str, str]:
        """The instants in the newest events, each with the DAG that emitted the event."""
        return self._instants(None)

    def has(self, instant: str) -> bool:
        """Return whether a commit has an event, among the newest events or the first ones after the commit."""
        return instant in self.newest or instant in self._instants(instant)

    def _instants(self, since: str | None) -> dict[str, str]:
        events = emitted_events(self.asset, _COMPARED, None if since is None else _time_of(since))
        return {str(event.extra["instant"]): event.dag_id for event in events if event.extra.get("instant")}


def _missing(commits: Sequence[IngestCommit], emitted: _Emitted) -> Iterator[IngestCommit]:
    """Yield the commits without an event, newest first."""
    newest_of_dag = max((at for at, dag_id in emitted.newest.items() if dag_id == emitted.dag_id), default="")
    for commit in commits:
        if commit.instant in emitted.newest or commit.instant <= newest_of_dag:
            return
        dag_id = _dag_of(commit.run_id)
        if not newest_of_dag and (dag_id != emitted.dag_id or timezone.utcnow() - _time_of(commit.completed) > MAX_AGE):
            return
        # Events of another DAG's runs are emitted by tasks of that DAG.
        if dag_id in (None, emitted.dag_id):
            yield commit


def _by_run(commits: Sequence[IngestCommit]) -> Iterator[list[IngestCommit]]:
    """Group the commits by run. A manual commit without a run id forms its own group."""
    for _, group in groupby(commits, key=lambda commit: _run_of(commit.run_id) or commit.instant):
        yield list(group)


def _event(commits: Sequence[IngestCommit]) -> TableEvent:
    """Build the event for the commits of a run, which are sorted newest first."""
    last = commits[0]
    start, _, end = last.interval.partition("/")
    return TableEvent(
        instant=last.instant,
        drift=tuple(dict.fromkeys(drift for commit in reversed(commits) for drift in commit.drift)),
        interval_start=_iso(start),
        interval_end=_iso(end),
        **{name: sum(getattr(commit, name) for commit in commits) for name in _SUMS},
    )


def _iso(text: str) -> str | None:
    return datetime.fromisoformat(text).isoformat() if text else None


def _run_of(run_id: str | None) -> str:
    return "/".join((run_id or "").split("/")[:_RUN_PARTS])


def _dag_of(run_id: str | None) -> str | None:
    """Return the DAG in a run id that an operator created; None for a manual run."""
    match = _AIRFLOW_RUN.fullmatch(run_id or "")
    return None if match is None else match[1]


def _time_of(instant: str) -> datetime:
    """Return the time of an instant. Timelines of this package are in UTC."""
    return datetime.strptime(instant[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
